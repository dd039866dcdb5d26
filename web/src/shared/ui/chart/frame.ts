// Which values the y axis holds: a single outlier does not flatten a curve.
import type { Buckets, Extent } from "./curve";
import { greatestExplained, quantile, usualSize } from "./values/outliers";

export interface Frame {
  /** Least and greatest value on the axis; null without a finite value. */
  values: Extent | null;
  /** Least positive one of these values; null without any. */
  positive: number | null;
  /** Least value below the axis and greatest one above it; null without any. */
  below: number | null;
  above: number | null;
}

/** Outliers are cut only if they would make the axis this many times as long as the other values. */
const TOO_LONG = 20;

/**
 * Return the values of the y axis for curves in one chart.
 *
 * The axis excludes outliers that would flatten the rest, and holds every other value. The usual size is
 * that of the curve, or the lower median of several curves. A curve with all values far from it has its own
 * scale. With `isFull` every value is on the axis.
 */
export function frameOfValues(curves: readonly Buckets[], isFull: boolean): Frame {
  const whole = extentOfValues(curves.flatMap(valuesOf));
  const kept = isFull ? whole : extentOfValues(explainedOf(curves));
  if (!whole || !kept) return { values: whole, positive: null, below: null, above: null };
  const size = Math.max(Math.abs(kept[0]), Math.abs(kept[1]), kept[1] - kept[0]);
  const values = whole[1] - whole[0] <= TOO_LONG * size ? whole : kept;
  return {
    values,
    positive: leastPositive(curves, values),
    below: whole[0] < values[0] ? whole[0] : null,
    above: whole[1] > values[1] ? whole[1] : null,
  };
}

const OTHER_SCALE = 10;

/** Return the least and greatest explained value of each curve. */
function explainedOf(curves: readonly Buckets[]): number[] {
  const sizes = curves.map(usualSize);
  const common = quantile(
    sizes.filter((size) => size > 0),
    0.5,
  );
  return curves.flatMap((curve, at) => {
    const values = valuesOf(curve);
    const isOther = values.every((value) => Math.abs(value) > OTHER_SCALE * common);
    const usual = isOther ? (sizes[at] ?? 0) : common;
    const high = greatestExplained(curve.max, usual);
    const low = greatestExplained(curve.min.map(negated), usual);
    return [high, negated(low)].filter((value) => value !== null);
  });
}

function negated(value: number | null): number | null {
  return value === null ? null : -value;
}

function valuesOf({ min, max }: Buckets): number[] {
  return [...min, ...max].filter((value) => value !== null);
}

function leastPositive(curves: readonly Buckets[], [low, high]: Extent): number | null {
  const isHeld = (value: number) => value > 0 && value >= low && value <= high;
  const [least] = extentOfValues(curves.flatMap(valuesOf).filter(isHeld)) ?? [null];
  return least;
}

function extentOfValues(values: readonly number[]): Extent | null {
  let [low, high] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return low <= high ? [low, high] : null;
}
