// Curves of a chart: buckets over a horizontal axis, their extent, the bucket at a place.
export type Extent = readonly [first: number, last: number];
export type Values = readonly (number | null)[];

/** The extremes of a curve's visible buckets; null where a bucket holds no finite value. */
export interface Buckets {
  min: readonly (number | null)[];
  max: readonly (number | null)[];
}

/** How a curve is drawn; colours are names of the theme's properties. */
export interface Look {
  colour: string;
  /** Colour of its marks for NaN and for values outside the axis. */
  alarm: string;
  /** Width in pixels. */
  width: number;
  /** Lengths of dashes and gaps in pixels; none for a solid line. */
  dash: readonly number[];
}

/** One series of one job in a chart. */
export interface Curve {
  /** Place of the job among those of the chart; 0 for one job. */
  slot: number;
  /** Name of the curve in the tooltip; null for the only curve of a chart. */
  label: string | null;
  /** Whether this is an abandoned branch: drawn over the others, without a band. */
  isBranch: boolean;
  look: Look;
  /** Start of each bucket on the axis; null if only the ends are known. */
  begins: readonly number[] | null;
  /** End of each bucket on the axis, in ascending order. */
  x: readonly number[];
  /** Last step of each bucket. */
  steps: readonly number[];
  /** Last finite value of each bucket; null if it holds none. */
  last: Values;
  /** The moving average of `last`; equal to `last` without smoothing. */
  smooth: Values;
  min: Values;
  max: Values;
  /** Number of points of each bucket, and number of its NaN or infinite points. */
  count: readonly number[];
  nonFinite: readonly number[];
}

/** One bucket of a curve. */
export interface Reading {
  begin: number;
  x: number;
  step: number;
  last: number | null;
  smooth: number | null;
  min: number | null;
  max: number | null;
  count: number;
  nonFinite: number;
}

/** First and last place of all curves; null without points. */
export function extentOfCurves(curves: readonly Curve[]): Extent | null {
  const first = Math.min(...curves.map(({ x }) => x[0] ?? Number.POSITIVE_INFINITY));
  const last = Math.max(...curves.map(({ x }) => x.at(-1) ?? Number.NEGATIVE_INFINITY));
  return first <= last ? [first, last] : null;
}

/** The stretch of the axis: the chosen one, else the extent of the curves, wider than one point. */
export function stretchOf(curves: readonly Curve[], chosen: Extent | null): [number, number] {
  const [first, last] = chosen ?? extentOfCurves(curves) ?? [0, 1];
  return first === last ? [Math.max(first - 1, 0), last + 1] : [first, last];
}

/** The buckets of a curve that reach into a stretch, both ends included. */
export function bucketsWithin({ begins, x, min, max }: Curve, [from, to]: Extent): Buckets {
  const first = firstAtOrAfter(x, from);
  // Without known starts, the bucket that ends just after the stretch reaches into it.
  const end = begins ? firstAfter(begins, to) : firstAfter(x, to) + 1;
  return { min: min.slice(first, end), max: max.slice(first, end) };
}

/**
 * Return the bucket nearest to a place; null if the curve has none.
 *
 * The only curve of a chart has a nearest bucket everywhere; one of several curves, or a branch, has
 * none outside its ends.
 */
export function readingAt(curve: Curve, place: number): Reading | null {
  if (curve.label !== null && !isWithin(curve, place)) return null;
  const after = firstAtOrAfter(curve.x, place);
  const before = after - 1;
  const isBefore = distance(curve, before, place) < distance(curve, after, place);
  return readingOf(curve, isBefore ? before : after);
}

function isWithin({ begins, x }: Curve, place: number): boolean {
  const [first, last] = [(begins ?? x)[0] ?? place + 1, x.at(-1) ?? place - 1];
  return place >= first && place <= last;
}

export function newestReading(curve: Curve): Reading | null {
  return readingOf(curve, curve.x.length - 1);
}

export function pointTotal({ count }: Curve): number {
  return sum(count);
}

export function nonFiniteTotal({ nonFinite }: Curve): number {
  return sum(nonFinite);
}

/** Return the previous or next place with a bucket of any curve, for the arrow keys. */
export function neighbourPlace(
  curves: readonly Curve[],
  place: number | null,
  by: number,
): number | null {
  const places = [...new Set(curves.flatMap(({ x }) => x))].sort((a, b) => a - b);
  const end = places.length - 1;
  const at = place === null ? places.length : Math.min(firstAtOrAfter(places, place), end);
  return places[Math.min(Math.max(at + by, 0), end)] ?? null;
}

/** Return the index of the first place that is not below `place`; the length if all are below. */
function firstAtOrAfter(places: readonly number[], place: number): number {
  return firstWhere(places, (each) => each >= place);
}

function firstAfter(places: readonly number[], place: number): number {
  return firstWhere(places, (each) => each > place);
}

/** Return the first index at which `isReached` holds, by bisection: it holds from some index on. */
function firstWhere(places: readonly number[], isReached: (place: number) => boolean): number {
  let [low, high] = [0, places.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (isReached(places[middle] ?? 0)) high = middle;
    else low = middle + 1;
  }
  return low;
}

function distance({ begins, x }: Curve, at: number, place: number): number {
  const [first, last] = [(begins ?? x)[at], x[at]];
  if (first === undefined || last === undefined) return Number.POSITIVE_INFINITY;
  if (place >= first && place <= last) return 0;
  return Math.min(Math.abs(place - first), Math.abs(place - last));
}

function readingOf(curve: Curve, at: number): Reading | null {
  const x = curve.x[at];
  if (x === undefined) return null;
  return {
    begin: curve.begins?.[at] ?? x,
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

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, some) => total + some, 0);
}
