// Which charts a job page draws, in which order, and where its attempts begin in them.
import type { Attempt } from "@/shared/api/types";
import { bytes, metric, short } from "@/shared/format/numbers";
import { duration } from "@/shared/format/time";

/** Drawn first, in this order, where the job has them. */
export const FIRST = [
  "train/loss",
  "validation/loss",
  "train/grad_norm",
  "train/lr",
  "perf/tokens_per_second_per_device",
  "memory/peak_reserved_gib",
  "memory/peak_rss_gib",
  "checkpoint/stall_seconds",
  "perf/mfu",
];

export interface Panels {
  /** Always drawn. */
  first: string[];
  /** Drawn when asked for. */
  more: string[];
}

/** Return the names of a job's series, those that most people want first. */
export function panelsOf(names: readonly string[]): Panels {
  const first = FIRST.filter((name) => names.includes(name));
  return { first, more: names.filter((name) => !first.includes(name)) };
}

/** Return how values of a series are written: by the unit that its name carries. */
export function formatOf(name: string): (value: number) => string {
  if (name.endsWith("_seconds")) return duration;
  if (name.endsWith("_gib")) return (gib) => bytes(gib * 2 ** 30);
  if (name.includes("tokens") || name.includes("sequences")) return short;
  return (value) => metric(value).replace(/\.?0+e/, "e");
}

/** Where an attempt begins on the lineage. */
export interface AttemptMark {
  step: number;
  attempt: number;
  label: string;
}

/**
 * Return where the attempts of the lineage begin, in order of their steps.
 *
 * Of attempts that begin at one step the newest counts: the others left nothing on the lineage.
 */
export function marksOf(attempts: readonly Attempt[]): AttemptMark[] {
  const byStep = new Map<number, AttemptMark>();
  const oldestFirst = attempts.filter((a) => a.on_lineage).sort((a, b) => a.number - b.number);
  for (const { start_step, number, layout_name } of oldestFirst) {
    byStep.set(start_step, { step: start_step, attempt: number, label: layout_name });
  }
  return [...byStep.values()].sort((a, b) => a.step - b.step);
}

/** The marks as a chart draws them: a layout is named where it changes. */
export function labelled(marks: readonly AttemptMark[]): AttemptMark[] {
  return marks.map((mark, index) =>
    marks[index - 1]?.label === mark.label ? { ...mark, label: "" } : mark,
  );
}

/** Return the attempt that took a step of the lineage. */
export function markAt(marks: readonly AttemptMark[], step: number): AttemptMark | undefined {
  return marks.findLast((mark) => mark.step < step);
}
