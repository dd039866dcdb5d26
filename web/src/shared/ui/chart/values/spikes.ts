// Spikes: buckets far from the course of their curve, always drawn at full opacity.
import type { Curve } from "../curve";
import { quantile } from "./outliers";

/** One extreme of a bucket with a spike. */
export interface Spike {
  at: number;
  value: number;
}

/** Buckets on each side that a bucket is compared with. */
const AROUND = 8;
/** A spike is this many times as far from the middle as most of the other values. */
const OUT = 4;
const MOST = 0.8;

const found = new WeakMap<Curve, readonly Spike[]>();

/** Return the spikes of a curve, upwards and downwards, computed once. */
export function spikesOf(curve: Curve): readonly Spike[] {
  const known = found.get(curve);
  if (known) return known;
  const { min, max } = curve;
  const places = max.flatMap((value, at) => (value === null ? [] : [at]));
  const highs = places.map((at) => max[at] ?? 0);
  const lows = places.map((at) => -(min[at] ?? 0));
  const spikes = places.flatMap((at, order) => [
    ...(standsOut(highs, order) ? [{ at, value: highs[order] ?? 0 }] : []),
    ...(standsOut(lows, order) ? [{ at, value: -(lows[order] ?? 0) }] : []),
  ]);
  found.set(curve, spikes);
  return spikes;
}

function standsOut(values: readonly number[], at: number): boolean {
  const before = values.slice(Math.max(at - AROUND, 0), at);
  const others = [...before, ...values.slice(at + 1, at + 1 + AROUND)];
  if (others.length < AROUND) return false;
  const middle = quantile(others, 0.5);
  const away = (values[at] ?? 0) - middle;
  if (away <= 0) return false;
  const spread = others.map((value) => Math.abs(value - middle));
  return away > OUT * quantile(spread, MOST);
}
