// The offered layouts as rows of the resume dialog, and the proposed one. Pure.
import type { ResumeOptions } from "@/shared/api/types";
import { percent } from "@/shared/format/numbers";
import type { Aim } from "@/shared/url/pages";

type SizeOption = ResumeOptions["options"][number];
export type LayoutOption = SizeOption["layouts"][number];
export type PipelinePlan = NonNullable<LayoutOption["pipeline"]>;

/** A row of the dialog: a layout on a number of slots, or the reason why none is legal. */
export interface Row {
  key: string;
  worldSize: number;
  /** Null if no layout is legal. */
  option: LayoutOption | null;
  reason: string | null;
  freeNow: boolean;
  /** Whether it is the first of its world size, which the server uses if only a world size is given. */
  isFirst: boolean;
  /** Whether the newest attempt ran with it. */
  isBefore: boolean;
  /** On the last row of a world size: number of omitted legal layouts. */
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

/** Return the share of a step without computation: empty sequence slots, and the bubble. */
export function idleShare({ batch, pipeline }: Pick<LayoutOption, "batch" | "pipeline">): number {
  return 1 - (1 - (batch?.idle_share ?? 0)) * (1 - (pipeline?.bubble_share ?? 0));
}

/** The rows of one number of slots. */
export interface Group {
  worldSize: number;
  /** The rows that are always listed: the first, the previous and the chosen layout. */
  listed: Row[];
  /** The other layouts. */
  others: Row[];
}

/** Return the rows by number of slots. */
export function groupsOf(rows: readonly Row[], chosen: Row | undefined): Group[] {
  const groups = new Map<number, Group>();
  for (const row of rows) {
    const group = groups.get(row.worldSize) ?? { worldSize: row.worldSize, listed: [], others: [] };
    groups.set(row.worldSize, group);
    const isListed = row.isFirst || row.isBefore || row.key === chosen?.key;
    (isListed ? group.listed : group.others).push(row);
  }
  return [...groups.values()];
}

/**
 * Return the micro-batch size that the dialog proposes; null to leave it as it is.
 *
 * After a shortage of memory it proposes half, if more slots alone are not enough: a smaller micro-batch
 * needs less memory, and the result stays the same.
 */
export function proposedMicroBatchSize(row: Row | undefined, aim: Aim): number | null {
  const size = row?.option?.batch?.micro_batch_size ?? 1;
  if (aim !== "memory" || size === 1) return null;
  return row?.isBefore || row?.option?.fits === false ? Math.floor(size / 2) : null;
}

/** Return the fastest other layout that could start now; without known speeds, the largest. */
function fastestOther(legal: readonly Row[]): Row | undefined {
  const free = legal.filter((row) => row.freeNow && !row.isBefore && row.option?.fits !== false);
  const speed = (row: Row) => row.option?.speed?.tokens_per_second ?? 0;
  return free.reduce<Row | undefined>((best, row) => {
    if (best === undefined || speed(row) > speed(best)) return row;
    const isLarger = row.isFirst && row.worldSize > best.worldSize;
    return speed(row) === speed(best) && isLarger ? row : best;
  }, undefined);
}

/**
 * Return the row that the dialog proposes.
 *
 * For a resize: the fastest other free layout, and never the running one; without a free one, a person
 * chooses. After a shortage of memory: the next larger number of slots that fits. After lost slots: the
 * largest free number, up to the previous one. Otherwise: the previous layout if it is legal.
 */
export function firstRow(rows: readonly Row[], aim: Aim, isResize = false): Row | undefined {
  const legal = rows.filter((row) => row.option !== null);
  if (isResize) return fastestOther(legal);
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
