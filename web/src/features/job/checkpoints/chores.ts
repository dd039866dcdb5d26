// What is being done to checkpoints, and the words for it.
import type { CheckpointView, Chore, EventView } from "@/shared/api/types";
import { command } from "@/shared/format/shell";

export type CheckpointVerb = "verify" | "pin" | "unpin" | "delete";

interface VerbWords {
  label: string;
  /** What it does, in a sentence. */
  means: string;
}

export const CHECKPOINT_VERBS: Record<CheckpointVerb, VerbWords> = {
  verify: {
    label: "Verify",
    means: "Compares every file with its checksum, then loads every tensor on other ranks.",
  },
  pin: { label: "Pin", means: "Keeps it, whatever retention says, until it is unpinned." },
  unpin: { label: "Unpin", means: "Leaves it to retention again." },
  delete: {
    label: "Delete",
    means: "Removes its files from storage. Refused while something needs it.",
  },
};

/** What may be asked of a checkpoint now. */
export function verbsOf(row: CheckpointView): CheckpointVerb[] {
  if (row.deleting) return ["delete"];
  return ["verify", row.pinned_at === null ? "pin" : "unpin", "delete"];
}

/** The same by command line. */
export function verbCommand(verb: CheckpointVerb, reference: string): string {
  return command("checkpoints", verb, reference);
}

export function isOpen(chore: Chore): boolean {
  return chore.state === "queued" || chore.state === "running";
}

/** The chore that a row tells of: one that is open, else a newest one that failed. */
export function toldChore(chores: readonly Chore[], checkpointId: string): Chore | null {
  const own = chores.filter((chore) => chore.checkpoint_id === checkpointId);
  const open = own.find(isOpen);
  if (open) return open;
  const [newest] = own;
  return newest?.state === "failed" ? newest : null;
}

/** Done of all, from 0 to 1; null before the node has said. */
export function shareDone(chore: Chore): number | null {
  const { progress } = chore;
  if (chore.state !== "running" || !progress || progress.total === 0) return null;
  return Math.min(progress.done / progress.total, 1);
}

const DOING: Record<Chore["kind"], string> = {
  verify: "verifying",
  scrub: "scrubbing",
  delete: "deleting",
  export: "exporting",
};

export function choreWords(chore: Chore): string {
  if (chore.state === "failed") return `${chore.kind} failed`;
  return chore.state === "queued" ? `${chore.kind} queued` : DOING[chore.kind];
}

/** Bring a list forward by the event of a chore's progress. */
export function withProgress(chores: readonly Chore[], event: EventView): Chore[] {
  return chores.map((chore) =>
    chore.id === event.data.chore_id
      ? { ...chore, state: "running", progress: event.data.progress as Chore["progress"] }
      : chore,
  );
}
