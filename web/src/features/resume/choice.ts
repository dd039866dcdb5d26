// What a person chooses in the resume dialog, as a request and as a command line. Pure.
import type { Job, ResumeOptions } from "@/shared/api/types";
import { percent } from "@/shared/format/numbers";
import { command } from "@/shared/format/shell";
import { checkpointReference } from "@/shared/job/reference";
import type { Aim } from "@/shared/url/pages";
import type { ResumeRequest } from "./api";

type SizeOption = ResumeOptions["options"][number];
export type LayoutOption = SizeOption["layouts"][number];
export type PipelinePlan = NonNullable<LayoutOption["pipeline"]>;

/** A row of the dialog: a layout on a number of slots, or the reason why there is none. */
export interface Row {
  key: string;
  worldSize: number;
  /** Null where no layout is legal. */
  option: LayoutOption | null;
  reason: string | null;
  freeNow: boolean;
  /** The first of its world size: the one that a resume takes by itself. */
  isFirst: boolean;
  /** As the newest attempt ran. */
  isBefore: boolean;
  /** Legal layouts that the list leaves out after this one, the last of its world size. */
  more: number;
}

/** Return the rows; `before` is the name of the newest attempt's layout. */
export function rowsOf(options: ResumeOptions, before: string | null): Row[] {
  return options.options.flatMap((size): Row[] => {
    const shared = { worldSize: size.world_size, freeNow: size.free_now };
    if (size.layouts.length === 0) {
      const key = String(size.world_size);
      const none = { option: null, reason: size.reason, isFirst: true, isBefore: false, more: 0 };
      return [{ ...shared, ...none, key }];
    }
    return size.layouts.map((option, index) => ({
      ...shared,
      key: `${size.world_size}/${option.name}`,
      option,
      reason: null,
      isFirst: index === 0,
      isBefore: option.name === before,
      more: index === size.layouts.length - 1 ? size.more : 0,
    }));
  });
}

/** `1F1B, 20 % bubble` */
export function pipelineWords({ schedule, bubble_share }: PipelinePlan): string {
  return `${schedule}, ${percent(bubble_share)} bubble`;
}

export interface Choice {
  row: Row;
  /** Absent for the newest of the lineage. */
  checkpointId: string | null;
  /** Absent where nothing was typed. */
  microBatchSize: number | null;
  steps: number | null;
  /** Whether the own model's code may differ from what wrote the checkpoint. */
  allowCodeChange: boolean;
}

/** Return the least request that means the choice. */
export function requestOf(job: Job, choice: Choice): ResumeRequest {
  const { row, checkpointId, microBatchSize, steps } = choice;
  const axes = axesToName(job, row);
  const parallelism = axes ? { ...job.effective_spec.parallelism, ...axes } : null;
  return {
    ...(checkpointId ? { checkpoint_id: checkpointId } : {}),
    world_size: row.worldSize,
    overrides: {
      ...(parallelism ? { parallelism } : {}),
      ...(microBatchSize !== null ? { micro_batch_size: microBatchSize } : {}),
    },
    ...(steps !== null ? { steps } : {}),
    ...(choice.allowCodeChange ? { allow_code_change: true } : {}),
  };
}

export function resumeCommand(reference: string, job: Job, choice: Choice): string {
  const { row, checkpointId, microBatchSize, steps } = choice;
  const before = new Map<string, unknown>(Object.entries(job.effective_spec.parallelism));
  const set = Object.entries(axesToName(job, row) ?? {})
    .filter(([axis, size]) => before.get(axis) !== size)
    .map(([axis, size]) => `parallelism.${axis}=${size}`);
  if (microBatchSize !== null) set.push(`training.micro_batch_size=${microBatchSize}`);
  return command(
    "resume",
    checkpointId ? checkpointReference(reference, checkpointId) : reference,
    "--world-size",
    String(row.worldSize),
    ...(steps !== null ? ["--steps", String(steps)] : []),
    ...set.flatMap((assignment) => ["--set", assignment]),
    ...(choice.allowCodeChange ? ["--allow-code-change"] : []),
  );
}

/**
 * Return the axes that the request must name; null where the number of slots selects the layout.
 *
 * On the present number of slots a resume keeps the layout, on others it takes the first legal one.
 */
function axesToName(job: Job, { option, isFirst, isBefore, worldSize }: Row) {
  const isSelected = isFirst && (isBefore || worldSize !== job.world_size);
  return isSelected ? null : (option?.layout ?? null);
}

/**
 * Return the micro-batch size that the dialog proposes; null to leave it as it is.
 *
 * After a shortage of memory half of it, where more slots alone are not enough: fewer sequences at
 * once need less memory, and the result stays the same.
 */
export function proposedMicroBatchSize(row: Row | undefined, aim: Aim): number | null {
  const size = row?.option?.batch.micro_batch_size ?? 1;
  if (aim !== "memory" || size === 1) return null;
  return row?.isBefore || row?.option?.fits === false ? Math.floor(size / 2) : null;
}

/** The nearest number of slots that does not run already: more where they are free, else fewer. */
function firstOther(legal: readonly Row[]): Row | undefined {
  const now = legal.find((row) => row.isBefore)?.worldSize ?? 0;
  const others = legal.filter((row) => row.isFirst && row.worldSize !== now);
  const larger = others.find((row) => row.worldSize > now && row.freeNow);
  return larger ?? others.findLast((row) => row.worldSize < now) ?? others[0];
}

/**
 * Return the row that is chosen to begin with; in a resize never the one that runs.
 *
 * As before where that is possible; after a shortage of memory the next larger number of slots
 * that fits, if there is one; after lost slots the largest number that is free, up to the one before.
 */
export function firstRow(rows: readonly Row[], aim: Aim, isResize = false): Row | undefined {
  const legal = rows.filter((row) => row.option !== null);
  if (isResize) return firstOther(legal);
  const before = legal.find((row) => row.isBefore);
  const size = before?.worldSize ?? 0;
  if (aim === "memory") {
    const larger = legal.filter((row) => row.worldSize > size);
    return larger.find((row) => row.option?.fits !== false) ?? before ?? legal[0];
  }
  if (aim === "free") {
    const free = legal.filter((row) => row.freeNow && row.isFirst);
    return free.findLast((row) => row.worldSize <= (size || row.worldSize)) ?? free[0] ?? before;
  }
  return before ?? legal.find((row) => row.freeNow) ?? legal[0];
}
