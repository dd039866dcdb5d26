// Operations on checkpoints, and their texts.
import type { CheckpointView, ExportRequest, Job, Operation, StreamItem } from "@/shared/api/types";
import { command } from "@/shared/format/shell";
import { moment } from "@/shared/format/time";

export type CheckpointVerb = "verify" | "export" | "pin" | "unpin" | "delete";

export type Exported = NonNullable<NonNullable<Operation["outcome"]>["export"]>;

interface VerbWords {
  label: string;
  /** Its effect, in one sentence. */
  means: string;
}

export const CHECKPOINT_VERBS: Record<CheckpointVerb, VerbWords> = {
  verify: {
    label: "Verify",
    means:
      "Compares every file with its checksum, then loads every tensor on other ranks; a program's tensors are not loaded.",
  },
  export: {
    label: "Export",
    means: "Writes weights, config and tokenizer to a folder on storage that transformers loads.",
  },
  pin: { label: "Pin", means: "Exempts it from retention until it is unpinned." },
  unpin: { label: "Unpin", means: "Leaves it to retention again." },
  delete: {
    label: "Delete",
    means: "Removes its files from storage. Refused while something needs it.",
  },
};

/** Return the possible actions now; only models of the built-in families are exported. */
export function verbsOf(row: CheckpointView, job: Pick<Job, "spec">): CheckpointVerb[] {
  if (row.deleting) return ["delete"];
  const canExport = row.verification?.ok !== false && !job.spec.model.factory && !job.spec.program;
  const pin = row.pinned_at === null ? "pin" : "unpin";
  return ["verify", ...(canExport ? (["export"] as const) : []), pin, "delete"];
}

/** The equivalent command line. */
export function verbCommand(verb: CheckpointVerb, reference: string): string {
  return command("checkpoints", verb, reference);
}

export function exportCommand(reference: string, { dtype, name }: ExportRequest): string {
  const options = [...(dtype ? ["--dtype", dtype] : []), ...(name ? ["--name", name] : [])];
  return command("export", reference, ...options, "--wait");
}

/** Return the operation to show: an open one, else the newest if it failed. */
export function toldOperation(
  operations: readonly Operation[],
  checkpointId: string,
): Operation | null {
  const own = operations.filter((operation) => operation.checkpoint_id === checkpointId);
  // A failed automatic export has a badge of its own.
  const [last] = own;
  const failed = last?.state === "failed" && last.kind !== "auto_export" ? last : null;
  return own.find(({ ended_at }) => ended_at === null) ?? failed;
}

/** Return the automatic export, then the newest export of each other folder; it may have moved. */
export function exportsOf(
  operations: readonly Operation[],
  row: Pick<CheckpointView, "id" | "auto_export">,
): Exported[] {
  const found = new Map<string, Exported>();
  const automatic = row.auto_export?.result;
  if (automatic) found.set(automatic.place, automatic);
  for (const { checkpoint_id, outcome } of operations) {
    const written = outcome?.export;
    if (checkpoint_id !== row.id || !written) continue;
    if (!found.has(written.place)) found.set(written.place, written);
  }
  return [...found.values()];
}

/** Return the progress from 0 to 1; null before the first report of the node. */
export function shareDone(operation: Operation): number | null {
  const { progress } = operation;
  if (operation.state !== "running" || !progress || progress.total === 0) return null;
  return Math.min(progress.done / progress.total, 1);
}

const DOING: Record<Operation["kind"], string> = {
  verify: "verifying",
  scrub: "scrubbing",
  delete: "deleting",
  export: "exporting",
  sample: "sampling",
  recover: "searching",
  build: "building",
  auto_export: "exporting",
};

const KINDS: Partial<Record<Operation["kind"], string>> = { auto_export: "automatic export" };

/** Return how often and why an operation failed, and when it is retried. */
export function failedTries(failing: NonNullable<CheckpointView["not_deleted"]>): string {
  const tries = failing.count === 1 ? "once" : `${failing.count} times`;
  const again = failing.next_at === null ? "" : `, next try ${moment(failing.next_at)}`;
  return `Failed ${tries} since ${moment(failing.since)}${again}: ${failing.reason}`;
}

export function operationWords(operation: Operation): string {
  const kind = KINDS[operation.kind] ?? operation.kind;
  if (operation.state === "failed") return `${kind} failed`;
  if (operation.failing) return `${kind} failed, will be retried`;
  return operation.state === "queued" ? `${kind} queued` : DOING[operation.kind];
}

/** Return the id and changed fields of an event's operation; null if the list must be read again. */
function toldBy(event: StreamItem): Partial<Operation> | null {
  switch (event.kind) {
    case "operation_progress":
      return { id: event.data.operation_id, state: "running", progress: event.data.progress };
    case "operation_waiting":
      return { id: event.data.operation_id, waiting: event.data.waiting };
    default:
      return null;
  }
}

/** Apply an event that contains the whole change to a list. */
export function withEvent(
  operations: readonly Operation[],
  event: StreamItem,
): readonly Operation[] {
  const told = toldBy(event);
  if (!told) return operations;
  return operations.map((operation) =>
    operation.id === told.id ? { ...operation, ...told } : operation,
  );
}
