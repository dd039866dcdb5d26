// Curves of several jobs over one axis: places, values, a moving average, the values at a place.
import type { ComparedJob, ComparedLine } from "@/shared/api/types";
import type { Buckets } from "@/shared/ui/chart/frame";
import { type Extent, firstAtOrAfter } from "@/shared/ui/chart/lines";
import type { Axis } from "./view";

export type Values = readonly (number | null)[];

/** One series of one job, as it is drawn. */
export interface Curve {
  /** Place of the job in the comparison: its colour and its dashes. */
  slot: number;
  job: ComparedJob;
  name: string;
  /** Where each bucket ends on the axis, never falling. */
  x: readonly number[];
  steps: readonly number[];
  /** Last finite value of each bucket; null where it holds none. */
  last: Values;
  /** The moving average of `last`; the same without smoothing. */
  smooth: Values;
  min: Values;
  max: Values;
  count: readonly number[];
  nonFinite: readonly number[];
}

/** One bucket of a curve. */
export interface CurveReading {
  x: number;
  step: number;
  last: number | null;
  smooth: number | null;
  min: number | null;
  max: number | null;
  count: number;
  nonFinite: number;
}

export interface HowDrawn {
  axis: Axis;
  smoothing: number;
}

/** Return the curves of one series; jobs without a place on the axis have none. */
export function curvesOf(
  jobs: readonly { slot: number; job: ComparedJob }[],
  name: string,
  how: HowDrawn,
): Curve[] {
  return jobs.flatMap(({ slot, job }) => {
    const line = job.lines.find((each) => each.name === name);
    const curve = line && curveOf(slot, job, line, how);
    return curve && curve.x.length > 0 ? [curve] : [];
  });
}

function curveOf(slot: number, job: ComparedJob, line: ComparedLine, how: HowDrawn): Curve {
  const places = placesOf(line, how.axis, job.start_time ?? 0);
  const kept = places.flatMap((x, at) => (x === null ? [] : [at]));
  const pick = <Value>(values: readonly Value[]) => kept.map((at) => values[at] as Value);
  const last = pick(line.last);
  return {
    slot,
    job,
    name: line.name,
    x: neverFalling(pick(places) as number[]),
    steps: pick(line.steps),
    last,
    smooth: smoothed(last, how.smoothing),
    min: pick(line.min),
    max: pick(line.max),
    count: pick(line.count),
    nonFinite: pick(line.non_finite),
  };
}

function placesOf(line: ComparedLine, axis: Axis, start: number): Values {
  if (axis === "step") return line.steps;
  if (axis === "tokens") return line.tokens;
  return line.times.map((time) => (time === null ? null : time - start));
}

/** Clocks of two machines may differ: a place before the last one is put beside it. */
function neverFalling(places: readonly number[]): number[] {
  let last = Number.NEGATIVE_INFINITY;
  return places.map((place) => {
    last = Math.max(last, place);
    return last;
  });
}

/**
 * Return the exponential moving average, each value divided by the sum of its weights.
 *
 * Without that division the beginning would be drawn towards zero. A gap stays a gap, and does not
 * move the average.
 */
export function smoothed(values: Values, weight: number): Values {
  if (weight <= 0) return values;
  let sum = 0;
  let weights = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = sum * weight + value * (1 - weight);
    weights = weights * weight + (1 - weight);
    return sum / weights;
  });
}

/** First and last place of all curves; null where there is no point. */
export function extentOfCurves(curves: readonly Curve[]): Extent | null {
  const first = Math.min(...curves.map(({ x }) => x[0] ?? Number.POSITIVE_INFINITY));
  const last = Math.max(...curves.map(({ x }) => x.at(-1) ?? Number.NEGATIVE_INFINITY));
  return first <= last ? [first, last] : null;
}

/** The buckets of a curve in a stretch. */
export function bucketsWithin({ x, min, max }: Curve, [from, to]: Extent): Buckets {
  const first = firstAtOrAfter(x, from);
  // Buckets may end at the same place; the one that ends just after the stretch reaches into it.
  const after = x.findIndex((place, at) => at >= first && place > to);
  const end = after < 0 ? x.length : after + 1;
  return { min: min.slice(first, end), max: max.slice(first, end) };
}

/** The bucket that ends nearest to a place; null beside the curve. */
export function curveReadingAt(curve: Curve, place: number): CurveReading | null {
  const { x } = curve;
  const [first, last] = [x[0] ?? place + 1, x.at(-1) ?? place - 1];
  if (place < first || place > last) return null;
  const after = firstAtOrAfter(x, place);
  const before = Math.max(after - 1, 0);
  const isBefore = place - (x[before] ?? place) < (x[after] ?? place) - place;
  return readingOf(curve, isBefore ? before : after);
}

export function newestReading(curve: Curve): CurveReading | null {
  return readingOf(curve, curve.x.length - 1);
}

/** The value of the newest bucket; null where none in it is finite. */
export function newestValue({ last }: Curve): number | null {
  return last.at(-1) ?? null;
}

export function pointTotal({ count }: Curve): number {
  return count.reduce((sum, some) => sum + some, 0);
}

export function strangeTotal({ nonFinite }: Curve): number {
  return nonFinite.reduce((sum, some) => sum + some, 0);
}

/** The place beside another one at which some curve has a bucket, for the arrow keys. */
export function neighbourPlace(curves: readonly Curve[], place: number | null, by: number) {
  const places = [...new Set(curves.flatMap(({ x }) => x))].sort((a, b) => a - b);
  if (places.length === 0) return null;
  const at =
    place === null ? places.length : Math.min(firstAtOrAfter(places, place), places.length - 1);
  return places[Math.min(Math.max(at + by, 0), places.length - 1)] ?? null;
}

function readingOf(curve: Curve, at: number): CurveReading | null {
  const x = curve.x[at];
  if (x === undefined) return null;
  return {
    x,
    step: curve.steps[at] ?? 0,
    last: curve.last[at] ?? null,
    smooth: curve.smooth[at] ?? null,
    min: curve.min[at] ?? null,
    max: curve.max[at] ?? null,
    count: curve.count[at] ?? 0,
    nonFinite: curve.nonFinite[at] ?? 0,
  };
}
