// Which values the y axis holds: a run that diverges does not flatten the others.
import type { Buckets, Extent } from "./curve";

export interface Frame {
  /** Least and greatest value on the axis; null without a finite value. */
  values: Extent | null;
  /** Least value below the axis and greatest one above it; null where there is none. */
  below: number | null;
  above: number | null;
}

/** A value is far when it is this many times as large as the usual ones. */
const FAR = 10;
/** A curve with far values shapes the axis by those up to this many times the usual ones. */
const NEAR = 6;

/**
 * Return the values of the y axis for curves over each other.
 *
 * The usual size is the third quartile of a curve's magnitudes, of several curves the lower median.
 * A curve that has far values and others too has left the usual range: its values beyond `NEAR` lie
 * outside the axis. A curve whose values are all far has a scale of its own and is shown whole, as
 * every curve is when `isFull`.
 */
export function frameOfValues(curves: readonly Buckets[], isFull: boolean): Frame {
  const size = isFull ? 0 : usualSize(curves);
  const usual = size > 0 ? size : Number.POSITIVE_INFINITY;
  const all = curves.flatMap(valuesOf);
  const kept = curves.flatMap((curve) => {
    const values = valuesOf(curve);
    return hasLeft(values, FAR * usual)
      ? values.filter((v) => Math.abs(v) <= NEAR * usual)
      : values;
  });
  const [values, whole] = [extentOfValues(kept), extentOfValues(all)];
  if (!values || !whole) return { values: null, below: null, above: null };
  return {
    values,
    below: whole[0] < values[0] ? whole[0] : null,
    above: whole[1] > values[1] ? whole[1] : null,
  };
}

function usualSize(curves: readonly Buckets[]): number {
  const sizes = curves.flatMap(({ min, max }) => {
    const magnitudes = max.flatMap((high, at) =>
      high === null ? [] : [Math.max(Math.abs(high), Math.abs(min[at] ?? high))],
    );
    return magnitudes.length === 0 ? [] : [quantile(magnitudes, 0.75)];
  });
  return sizes.length === 0 ? 0 : quantile(sizes, 0.5);
}

/** The value at a share of the sorted ones, the lower of two. */
function quantile(values: readonly number[], share: number): number {
  const sorted = Float64Array.from(values).sort();
  return sorted[Math.floor((sorted.length - 1) * share)] ?? 0;
}

function hasLeft(values: readonly number[], far: number): boolean {
  return values.some((v) => Math.abs(v) > far) && values.some((v) => Math.abs(v) <= far);
}

function valuesOf({ min, max }: Buckets): number[] {
  return [...min, ...max].filter((value) => value !== null);
}

function extentOfValues(values: readonly number[]): Extent | null {
  let [low, high] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return low <= high ? [low, high] : null;
}
