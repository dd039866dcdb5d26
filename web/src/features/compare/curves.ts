// Curves of several jobs over one axis: places, values, a moving average.
import type { ComparedJob, ComparedLine } from "@/shared/api/types";
import type { Axis } from "@/shared/ui/chart/axis";
import type { Curve, Values } from "@/shared/ui/chart/curve";
import { lookOf } from "@/shared/ui/chart/looks";

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
    label: job.name,
    isBranch: false,
    look: lookOf(slot),
    begins: null,
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

/** Clocks of two machines may differ: a place before the last one becomes equal to it. */
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

/** The value of the newest bucket; null where none in it is finite. */
export function newestValue({ last }: Curve): number | null {
  return last.at(-1) ?? null;
}
