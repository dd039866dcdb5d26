// What a chart reads from its lines: columns to draw, ranges of its axes, the values at a step.
import type { AlignedData } from "uplot";
import type { MetricLine } from "@/shared/api/types";
import type { Buckets } from "./frame";

/** Name of the line that a chart draws whole, with its band; all others are abandoned branches. */
export const COURSE = "lineage";

export type Extent = readonly [first: number, last: number];

/** One bucket of a line. */
export interface Reading {
  firstStep: number;
  lastStep: number;
  last: number | null;
  min: number | null;
  max: number | null;
  count: number;
  nonFinite: number;
}

export function courseOf(lines: readonly MetricLine[]): MetricLine | undefined {
  return lines.find((line) => line.branch === COURSE) ?? lines[0];
}

/** Steps, upper and lower edge of the band, and the line itself. */
export function columnsOf(line: MetricLine | undefined): AlignedData {
  return line ? [line.steps, line.max, line.min, line.last] : [[], [], [], []];
}

/** First and last step of all lines; null where there is no point. */
export function extentOf(lines: readonly MetricLine[]): Extent | null {
  let first = Number.POSITIVE_INFINITY;
  let last = Number.NEGATIVE_INFINITY;
  for (const line of lines) {
    first = Math.min(first, line.steps[0] ?? first);
    last = Math.max(last, line.steps.at(-1) ?? last);
  }
  return first <= last ? [first, last] : null;
}

/** The buckets of a line that overlap a stretch of steps, both ends included. */
export function bucketsBetween(line: MetricLine, [from, to]: Extent): Buckets {
  const first = firstAtOrAfter(line.steps, from);
  const end = firstAtOrAfter(line.first_steps, to + 1);
  return { min: line.min.slice(first, end), max: line.max.slice(first, end) };
}

/** The bucket of a line that is nearest to a step; null where the line has none near it. */
export function readingAt(line: MetricLine, step: number): Reading | null {
  const { steps } = line;
  const after = firstAtOrAfter(steps, step);
  const before = after - 1;
  const nearer = distance(line, before, step) < distance(line, after, step) ? before : after;
  return reading(line, nearer);
}

/** The same, but only within the steps of a branch. */
export function branchReadingAt(line: MetricLine, step: number): Reading | null {
  const within =
    step >= (line.first_steps[0] ?? step + 1) && step <= (line.steps.at(-1) ?? step - 1);
  return within ? readingAt(line, step) : null;
}

/** The newest bucket. */
export function lastReading(line: MetricLine): Reading | null {
  return reading(line, line.steps.length - 1);
}

/** The step beside the one at which the cursor stands, for the arrow keys. */
export function neighbourStep(line: MetricLine, step: number | null, by: number): number | null {
  const { steps } = line;
  if (steps.length === 0) return null;
  const at = step === null ? steps.length : Math.min(firstAtOrAfter(steps, step), steps.length - 1);
  const next = Math.min(Math.max(at + by, 0), steps.length - 1);
  return steps[next] ?? null;
}

export function nonFiniteTotal(line: MetricLine | undefined): number {
  return line ? line.non_finite.reduce((sum, some) => sum + some, 0) : 0;
}

/** Index of the first step that is not below `step`; the length where all are. */
export function firstAtOrAfter(steps: readonly number[], step: number): number {
  let low = 0;
  let high = steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((steps[middle] ?? 0) < step) low = middle + 1;
    else high = middle;
  }
  return low;
}

function distance(line: MetricLine, at: number, step: number): number {
  const [first, last] = [line.first_steps[at], line.steps[at]];
  if (first === undefined || last === undefined) return Number.POSITIVE_INFINITY;
  if (step >= first && step <= last) return 0;
  return Math.min(Math.abs(step - first), Math.abs(step - last));
}

function reading(line: MetricLine, at: number): Reading | null {
  const lastStep = line.steps[at];
  if (lastStep === undefined) return null;
  return {
    firstStep: line.first_steps[at] ?? lastStep,
    lastStep,
    last: line.last[at] ?? null,
    min: line.min[at] ?? null,
    max: line.max[at] ?? null,
    count: line.count[at] ?? 0,
    nonFinite: line.non_finite[at] ?? 0,
  };
}
