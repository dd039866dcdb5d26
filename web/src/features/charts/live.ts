// Brings charts forward by live points, between two readings of the exact buckets.
import type { MetricLine, Metrics, StreamItem } from "@/shared/api/types";
import { numberOf } from "@/shared/format/numbers";
import { LINEAGE } from "./curves";

/** The values of one step, as the event of stored points brings them. */
export interface Point {
  step: number;
  values: Record<string, number>;
}

/** Return the point that an event brings; null where it brings none. */
export function pointOf(event: StreamItem): Point | null {
  if (event.kind !== "metrics") return null;
  const { step, values } = event.data;
  const numbers: Record<string, number> = {};
  for (const [name, value] of Object.entries(values)) {
    const number = numberOf(value);
    if (number !== null) numbers[name] = number;
  }
  return { step, values: numbers };
}

/**
 * Return the charts with a point added to the end of their lineage, each as a bucket of its own.
 *
 * What is behind the end of a line is left to the next reading, and so is a series that had no
 * point before and is none of `wanted`.
 */
export function appendPoint(view: Metrics, point: Point, wanted: readonly string[]): Metrics {
  const known = new Set(view.lines.filter(isLineage).map((line) => line.name));
  const fresh = wanted.filter((name) => name in point.values && !known.has(name)).map(emptyLine);
  const names = Object.keys(point.values).filter((name) => !view.names.includes(name));
  const lines = [...view.lines, ...fresh].map((line) => {
    const value = isLineage(line) ? point.values[line.name] : undefined;
    if (value === undefined || point.step <= (line.steps.at(-1) ?? -1)) return line;
    return extended(line, point.step, value);
  });
  return {
    ...view,
    lines,
    names: names.length > 0 ? [...view.names, ...names].sort() : view.names,
    last_step: Math.max(view.last_step, point.step),
  };
}

function extended(line: MetricLine, step: number, value: number): MetricLine {
  const finite = Number.isFinite(value) ? value : null;
  return {
    ...line,
    steps: [...line.steps, step],
    first_steps: [...line.first_steps, step],
    min: [...line.min, finite],
    max: [...line.max, finite],
    last: [...line.last, finite],
    count: [...line.count, 1],
    non_finite: [...line.non_finite, finite === null ? 1 : 0],
  };
}

function emptyLine(name: string): MetricLine {
  return {
    name,
    branch: LINEAGE,
    steps: [],
    first_steps: [],
    min: [],
    max: [],
    last: [],
    count: [],
    non_finite: [],
  };
}

function isLineage(line: MetricLine): boolean {
  return line.branch === LINEAGE;
}
