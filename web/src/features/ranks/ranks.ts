// Step times of ranks by part, and their comparison.
import type { Ranks } from "@/shared/api/types";

export type Span = NonNullable<Ranks["times"]>["ranks"][number];

/** The parts of a step, from the bottom of a bar, each with the number of its colour in the theme. */
export const PARTS = [
  { name: "compute_seconds", words: "Compute", colour: 3 },
  { name: "data_seconds", words: "Waiting for data", colour: 6 },
  { name: "wait_seconds", words: "Waiting for other ranks", colour: 7 },
] as const;

/** Return a rank's own time of a step: compute, and waiting for data. */
export function ownSeconds(span: Span): number {
  return span.compute_seconds + span.data_seconds;
}

/** Return the length of the longest step, which is the height of the chart. */
export function longest(spans: readonly Span[]): number {
  return Math.max(...spans.map((span) => ownSeconds(span) + span.wait_seconds));
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = (sorted.length - 1) / 2;
  const [low = 0, high = 0] = [sorted[Math.floor(middle)], sorted[Math.ceil(middle)]];
  return (low + high) / 2;
}

/** Return the spans with the longest own time, each with its ratio to the median of all. */
export function slowest(spans: readonly Span[], limit: number): { span: Span; factor: number }[] {
  const typical = median(spans.map(ownSeconds));
  return [...spans]
    .sort((a, b) => ownSeconds(b) - ownSeconds(a))
    .slice(0, limit)
    .map((span) => ({ span, factor: typical > 0 ? ownSeconds(span) / typical : 1 }));
}

/** `rank 5`, or `slowest of ranks 64 to 127: 77`. */
export function spanWords({ first_rank: first, last_rank: last, rank }: Span): string {
  return first === last ? `rank ${rank}` : `slowest of ranks ${first} to ${last}: ${rank}`;
}
