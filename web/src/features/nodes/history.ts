// The curves of a node, as lines for the charts of its page and its card.
import type { NodeCurve, NodeMetrics } from "@/shared/api/types";

export interface Line {
  label: string;
  /** Place of its colour, from 0. */
  place: number;
  /** Seconds since 1970 and value, by time. */
  points: readonly (readonly [number, number])[];
}

/** Return the utilisation of a node: the mean of its GPUs, or without GPUs the load by cores. */
export function utilization(metrics: NodeMetrics, cores: number): Line {
  const gpus = metrics.curves.filter(({ name }) => name === "gpu_utilization_ratio");
  const curves = gpus.length > 0 ? gpus : metrics.curves.filter(({ name }) => name === "load");
  const sums = new Map<number, [number, number]>();
  for (const { points } of curves) {
    for (const { time, mean } of points) {
      const at = Date.parse(time) / 1000;
      const [sum, seen] = sums.get(at) ?? [0, 0];
      sums.set(at, [sum + mean, seen + 1]);
    }
  }
  const scale = gpus.length > 0 ? 1 : cores;
  const points = [...sums]
    .sort(([one], [other]) => one - other)
    .map(([at, [sum, seen]]) => [at, Math.min(sum / seen / scale, 1)] as const);
  return { label: gpus.length > 0 ? "GPU utilisation" : "Load of the cores", place: 0, points };
}

/** The lines of one series: one for each slot, disk or the host. */
export function linesOf(metrics: NodeMetrics, name: string): Line[] {
  return metrics.curves
    .filter((curve) => curve.name === name)
    .sort((one, other) => order(one) - order(other))
    .map((curve, place) => ({
      label: labelOf(curve),
      place,
      points: curve.points.map(({ time, mean }) => [Date.parse(time) / 1000, mean] as const),
    }));
}

/** Split a line at gaps of more than two periods. */
export function stretches(
  points: Line["points"],
  seconds: number,
): (readonly (readonly [number, number])[])[] {
  const found: (readonly [number, number])[][] = [];
  let last = Number.NEGATIVE_INFINITY;
  for (const point of points) {
    if (point[0] - last > 2 * seconds) found.push([]);
    found.at(-1)?.push(point);
    last = point[0];
  }
  return found;
}

function order({ slot }: NodeCurve): number {
  return slot ?? Number.MAX_SAFE_INTEGER;
}

function labelOf({ part, slot }: NodeCurve): string {
  if (slot !== null) return `slot ${slot}`;
  return part ?? "host";
}
