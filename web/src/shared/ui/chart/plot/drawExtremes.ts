// Draws the extremes of buckets, in the colour of their curve: no spike may fade, however narrow.
import uPlot from "uplot";
import type { Curve, Values } from "../curve";
import { type Spike, spikesOf } from "../values/spikes";
import { type Context, pixel, thickness } from "./palette";

/**
 * Fill the band between minimum and maximum, as if every point were joined to the next.
 *
 * Each bucket also fills a column of whole pixels: at its tips a band alone is thinner than a pixel.
 */
export function drawExtremes(chart: uPlot, context: Context, curve: Curve): void {
  context.beginPath();
  for (const run of runsOf(curve.min)) addBand(chart, context, curve, run);
  const width = thickness(curve.look.width);
  for (const [left, [top, bottom]] of columnsOf(chart, curve)) {
    if (bottom > top) context.rect(left - Math.floor(width / 2), top, width, bottom - top);
  }
  context.fill();
}

type Run = [from: number, to: number];

function addBand(chart: uPlot, context: Context, { x, min, max }: Curve, [from, to]: Run): void {
  context.moveTo(...pixel(chart, x[from] ?? 0, max[from] ?? 0));
  for (let at = from + 1; at < to; at += 1) {
    context.lineTo(...pixel(chart, x[at] ?? 0, max[at] ?? 0));
  }
  for (let at = to - 1; at >= from; at -= 1) {
    context.lineTo(...pixel(chart, x[at] ?? 0, min[at] ?? 0));
  }
  context.closePath();
}

/** Return the top and the bottom of the buckets in each column of pixels. */
function columnsOf(chart: uPlot, { x, min, max }: Curve): Map<number, [number, number]> {
  const columns = new Map<number, [number, number]>();
  max.forEach((high, at) => {
    const low = min[at] ?? null;
    if (high === null || low === null) return;
    const [left, top] = pixel(chart, x[at] ?? 0, high);
    const [, bottom] = pixel(chart, x[at] ?? 0, low);
    const column = Math.round(left);
    const [from, to] = columns.get(column) ?? [top, bottom];
    columns.set(column, [Math.min(from, top), Math.max(to, bottom)]);
  });
  return columns;
}

/** Join each spike to its neighbours by a solid line: the curve may be dashed or faint. */
export function drawSpikes(chart: uPlot, context: Context, curve: Curve): void {
  context.lineWidth = thickness(curve.look.width);
  context.setLineDash([]);
  for (const spike of spikesOf(curve)) drawSpike(chart, context, curve, spike);
}

/** A narrower spike has a column from its tip to the level of its neighbours. */
const NARROW = 24;

function drawSpike(chart: uPlot, context: Context, { x, last }: Curve, spike: Spike): void {
  const { at, value } = spike;
  const [left, top] = pixel(chart, x[at] ?? 0, value);
  const sides = [at - 1, at + 1]
    .filter((side) => x[side] !== undefined)
    .map((side) => pixel(chart, x[side] ?? 0, last[side] ?? value));
  for (const side of sides) {
    context.beginPath();
    context.moveTo(...side);
    context.lineTo(left, top);
    context.stroke();
  }
  const isNarrow = sides.every(([each]) => Math.abs(each - left) < (NARROW / 2) * uPlot.pxRatio);
  if (!isNarrow && isWithin(chart, top)) return;
  const heights = sides.map(([, each]) => each - top);
  const height = heights.reduce((most, each) => (Math.abs(each) > Math.abs(most) ? each : most), 0);
  const { lineWidth } = context;
  const from = Math.round(left) - Math.floor(lineWidth / 2);
  context.fillRect(from, Math.min(top, top + height), lineWidth, Math.abs(height));
}

function isWithin({ bbox }: uPlot, top: number): boolean {
  return top >= bbox.top && top <= bbox.top + bbox.height;
}

/** Return the runs of values without a gap: the first index, and the index after the last. */
export function runsOf(values: Values): Run[] {
  const runs: Run[] = [];
  values.forEach((value, at) => {
    if (value === null) return;
    const last = runs.at(-1);
    if (last?.[1] === at) last[1] = at + 1;
    else runs.push([at, at + 1]);
  });
  return runs;
}
