// The moving average of a curve.
import type { Values } from "../curve";

/** The greatest weight of the past. */
export const MAX_SMOOTHING = 0.99;

/**
 * Return the exponential moving average, each value divided by the sum of its weights.
 *
 * Without the division the start would be biased towards zero. A gap stays a gap, and does not change
 * the average.
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
