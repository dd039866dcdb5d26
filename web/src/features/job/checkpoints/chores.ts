// What is being done to checkpoints, and the words for it.
import type { CheckpointView, Chore, EventView, ExportRequest, Job } from "@/shared/api/types";
import { command } from "@/shared/format/shell";

export type CheckpointVerb = "verify" | "export" | "pin" | "unpin" | "delete";

export type Exported = NonNullable<NonNullable<Chore["outcome"]>["export"]>;

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
  export: {
    label: "Export",
    means: "Writes weights, config and tokenizer to a folder on storage that transformers loads.",
  },
  pin: { label: "Pin", means: "Keeps it, whatever retention says, until it is unpinned." },
  unpin: { label: "Unpin", means: "Leaves it to retention again." },
  delete: {
    label: "Delete",
    means: "Removes its files from storage. Refused while something needs it.",
  },
};

/** What may be asked of a checkpoint now; other programs know only models of the families. */
export function verbsOf(row: CheckpointView, job: Pick<Job, "spec">): CheckpointVerb[] {
  if (row.deleting) return ["delete"];
  const canExport = row.verification?.ok !== false && !job.spec.model.factory;
  const pin = row.pinned_at === null ? "pin" : "unpin";
  return ["verify", ...(canExport ? (["export"] as const) : []), pin, "delete"];
}

/** The same by command line. */
export function verbCommand(verb: CheckpointVerb, reference: string): string {
  return command("checkpoints", verb, reference);
}

export function exportCommand(reference: string, { dtype, name }: ExportRequest): string {
  const options = [...(dtype ? ["--dtype", dtype] : []), ...(name ? ["--name", name] : [])];
  return command("export", reference, ...options, "--wait");
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

/** Exports that were written, the newest of each folder first; somebody may have moved them since. */
export function exportsOf(chores: readonly Chore[], checkpointId: string): Exported[] {
  const found = new Map<string, Exported>();
  for (const { checkpoint_id, outcome } of chores) {
    const written = outcome?.export;
    if (checkpoint_id !== checkpointId || !written) continue;
    if (!found.has(written.place)) found.set(written.place, written);
  }
  return [...found.values()];
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
  sample: "sampling",
  recover: "searching",
};

export function choreWords(chore: Chore): string {
  if (chore.state === "failed") return `${chore.kind} failed`;
  return chore.state === "queued" ? `${chore.kind} queued` : DOING[chore.kind];
}

/** The fields of a chore that an event changes, with its id; null where the list must be read anew. */
function toldBy(event: EventView): Partial<Chore> | null {
  switch (event.kind) {
    case "chore_progress":
      return { id: event.data.chore_id, state: "running", progress: event.data.progress };
    case "chore_waiting":
      return { id: event.data.chore_id, waiting: event.data.waiting };
    default:
      return null;
  }
}

/** Bring a list forward by an event that tells all its news. */
export function withEvent(chores: readonly Chore[], event: EventView): readonly Chore[] {
  const told = toldBy(event);
  if (!told) return chores;
  return chores.map((chore) => (chore.id === told.id ? { ...chore, ...told } : chore));
}
