// Outliers: values that neither their neighbours nor a smooth curve explain.
import type { Buckets, Values } from "../curve";

/** Values up to this many times the usual size are ordinary, whatever their neighbours. */
const NEAR = 6;
/** A stretch of larger values is checked when one of them is this many times the usual size. */
const FAR = 10;
/** Largest factor between two neighbouring buckets of a smooth course after the start. */
const SMOOTH = 4;
/** Largest fall between two neighbouring buckets at the start of a curve: points may be sparse. */
const STEEP = 100;
/** Smooth growth is shown up to this many times the usual size. */
const MAX_GROWTH = 100;
/** Largest fall after the first bucket, which may hold most of a decay. */
const STEEPEST = 1e5;
/** Share of the buckets that count as the start of a curve: a warm-up may precede its decay. */
const BEGINNING = 0.1;

/** The usual size of a curve: the third quartile of its non-zero magnitudes. */
export function usualSize({ min, max }: Buckets): number {
  const sizes = max.flatMap((high, at) =>
    high === null ? [] : [Math.max(Math.abs(high), Math.abs(min[at] ?? high))],
  );
  return quantile(
    sizes.filter((size) => size > 0),
    0.75,
  );
}

/** Return a quantile of the values, the lower of two; 0 for no values. */
export function quantile(values: readonly number[], share: number): number {
  const sorted = Float64Array.from(values).sort();
  return sorted[Math.floor((sorted.length - 1) * share)] ?? 0;
}

/** Return the greatest explained value; null without one. */
export function greatestExplained(highs: Values, usual: number): number | null {
  const values = highs.filter((value) => value !== null);
  const isOut = new Set<number>();
  for (const [from, to] of stretchesAbove(values, NEAR * usual)) {
    const greatest = values.slice(from, to).reduce((most, value) => Math.max(most, value), 0);
    if (greatest <= FAR * usual) continue;
    const found =
      from <= BEGINNING * values.length
        ? outOfDecay(values, [from, to], usual)
        : outOfCourse(values, [from, to], usual);
    for (const at of found) isOut.add(at);
  }
  let most: number | null = null;
  values.forEach((value, at) => {
    if (!isOut.has(at)) most = Math.max(most ?? value, value);
  });
  return most;
}

type Stretch = readonly [from: number, to: number];

function stretchesAbove(values: readonly number[], limit: number): Stretch[] {
  const found: [number, number][] = [];
  values.forEach((value, at) => {
    const last = found.at(-1);
    if (value <= limit) return;
    if (last?.[1] === at) last[1] = at + 1;
    else found.push([at, at + 1]);
  });
  return found;
}

/**
 * Return the places at the start of a curve that lie outside its decay.
 *
 * The decay is followed backwards from its end. The first bucket may hold most of it.
 */
function outOfDecay(values: readonly number[], [from, to]: Stretch, usual: number): number[] {
  const found: number[] = [];
  let present = Math.max(values[to] ?? 0, NEAR * usual);
  for (let at = to - 1; at >= from; at -= 1) {
    const value = values[at] ?? 0;
    if (value <= present * (at === 0 ? STEEPEST : STEEP)) present = value;
    else found.push(at);
  }
  return found;
}

/** Return the outliers of a later stretch: all of it, unless the curve rises and falls smoothly. */
function outOfCourse(values: readonly number[], [from, to]: Stretch, usual: number): number[] {
  const places = Array.from({ length: to - from }, (_, n) => from + n);
  const floor = (at: number) => Math.max(values[at] ?? 0, usual) * SMOOTH;
  const isSmooth = places.every((at) => {
    const value = values[at] ?? 0;
    const isLast = at + 1 === values.length;
    return value <= floor(at - 1) && (isLast || value <= floor(at + 1));
  });
  const isSmall = places.every((at) => (values[at] ?? 0) <= MAX_GROWTH * usual);
  return isSmooth && isSmall ? [] : places;
}
