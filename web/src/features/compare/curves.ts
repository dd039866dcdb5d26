// Curves of several jobs over one axis: places, values, moving averages.
import type { ComparedCurve, ComparedJob } from "@/shared/api/types";
import type { Axis } from "@/shared/ui/chart/axis";
import type { Curve, Values } from "@/shared/ui/chart/curve";
import { lookOf } from "@/shared/ui/chart/looks";
import { smoothed } from "@/shared/ui/chart/values/smoothed";

export interface HowDrawn {
  axis: Axis;
  smoothing: number;
}

/** Return the curves of one series; jobs without a place on the axis are omitted. */
export function curvesOf(
  jobs: readonly { slot: number; job: ComparedJob }[],
  name: string,
  how: HowDrawn,
): Curve[] {
  return jobs.flatMap(({ slot, job }) => {
    const found = job.curves.find((curve) => curve.name === name);
    const drawn = found && drawnCurve(slot, job, found, how);
    return drawn && drawn.x.length > 0 ? [drawn] : [];
  });
}

function drawnCurve(slot: number, job: ComparedJob, curve: ComparedCurve, how: HowDrawn): Curve {
  const places = placesOf(curve, how.axis, job.start_time ?? 0);
  const kept = places.flatMap((x, at) => (x === null ? [] : [at]));
  const pick = <Value>(values: readonly Value[]) => kept.map((at) => values[at] as Value);
  const last = pick(curve.last);
  return {
    slot,
    label: job.name,
    isBranch: false,
    look: lookOf(slot),
    begins: null,
    x: neverFalling(pick(places) as number[]),
    steps: pick(curve.steps),
    last,
    smooth: smoothed(last, how.smoothing),
    min: pick(curve.min),
    max: pick(curve.max),
    count: pick(curve.count),
    nonFinite: pick(curve.non_finite),
  };
}

function placesOf(curve: ComparedCurve, axis: Axis, start: number): Values {
  if (axis === "step") return curve.steps;
  if (axis === "tokens") return curve.tokens;
  return curve.times.map((time) => (time === null ? null : time - start));
}

/** Raise each place to at least the previous one: clocks of two machines may differ. */
function neverFalling(places: readonly number[]): number[] {
  let last = Number.NEGATIVE_INFINITY;
  return places.map((place) => {
    last = Math.max(last, place);
    return last;
  });
}

/** Return the value of the newest bucket; null if it holds no finite value. */
export function newestValue({ last }: Curve): number | null {
  return last.at(-1) ?? null;
}
