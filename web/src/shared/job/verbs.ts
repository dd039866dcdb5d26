// The actions on a job: labels, sentences, and the equivalent command lines.
import type { Job, Verb } from "@/shared/api/types";
import { command } from "@/shared/format/shell";

interface VerbWords {
  label: string;
  /** Its effect, in one sentence. */
  means: string;
}

export const VERBS: Record<Verb, VerbWords> = {
  stop: { label: "Stop", means: "Saves a checkpoint, then ends. The job can resume from it." },
  cancel: { label: "Cancel", means: "Ends immediately, without saving." },
  resume: { label: "Resume", means: "Continues from a checkpoint, on any legal number of slots." },
  resize: { label: "Resize", means: "Saves, stops, and continues on another number of slots." },
  save: { label: "Save now", means: "Saves a checkpoint; training continues." },
  delete: { label: "Delete", means: "Removes the job with its charts, logs and events." },
};

/** Names of the dialogs; `save` needs none. */
export type DialogVerb = Exclude<Verb, "save">;

export function isDialogVerb(word: string | null): word is DialogVerb {
  return word !== null && word in VERBS && word !== "save";
}

/** Return the verb that continues the job from a checkpoint, by its present state. */
export function resumeVerb(job: Job): "resume" | "resize" | null {
  if (job.verbs.includes("resume")) return "resume";
  return job.verbs.includes("resize") ? "resize" : null;
}

export type EndVerb = "stop" | "cancel";

export function endCommand(verb: EndVerb, reference: string, reason: string): string {
  return command(verb, reference, ...(reason ? ["--reason", reason] : []));
}

export function deleteCommand(reference: string, checkpoints: "keep" | "delete"): string {
  return command("delete", reference, ...(checkpoints === "delete" ? ["--checkpoints"] : []));
}

/** Requests on a running trainer that do not end it. */
export const REQUESTS = {
  save: { ...VERBS.save, busy: "Saving…" },
  profile: {
    label: "Profile",
    means: "Records the next three steps with torch.profiler, in the run directory on the node.",
    busy: "Recording…",
  },
};

export type Asked = keyof typeof REQUESTS;
