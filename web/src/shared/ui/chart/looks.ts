// Styles of curves: of one job, of its branches, and of several jobs.
import type { Look } from "./curve";

/** The curve of one job: the accent, with red marks. */
export const SINGLE: Look = { colour: "accent", alarm: "bad", width: 1.5, dash: [] };

/** An abandoned branch: thin and dashed. */
export const BRANCH: Look = { colour: "text-3", alarm: "bad", width: 1.25, dash: [4, 3] };

/** Dashes by place, in pixels: jobs can be distinguished without colours. */
const DASHES: readonly (readonly number[])[] = [
  [],
  [9, 4],
  [2, 3],
  [9, 3, 2, 3],
  [4, 3],
  [14, 3],
  [9, 3, 2, 3, 2, 3],
  [2, 6],
];

/** The look of a job among several, by its place. */
export function lookOf(slot: number): Look {
  const colour = `job-${slot + 1}`;
  return { colour, alarm: colour, width: 1.75, dash: DASHES[slot] ?? [] };
}
