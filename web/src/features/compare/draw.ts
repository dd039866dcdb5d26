// Draws curves on a chart's canvas: colour and dashes tell jobs apart, one of them may stand out.
import uPlot from "uplot";
import { drawOutside, inFrame } from "@/shared/ui/chart/draw";
import type { Frame } from "@/shared/ui/chart/frame";
import type { Curve, Values } from "./curves";

/** Dashes by place, in pixels: jobs can be told apart without colours. */
export const DASHES: readonly (readonly number[])[] = [
  [],
  [9, 4],
  [2, 3],
  [9, 3, 2, 3],
  [4, 3],
  [14, 3],
  [9, 3, 2, 3, 2, 3],
  [2, 6],
];

export interface DrawnCurves {
  curves: readonly Curve[];
  /** Place of the job that stands out, if any does. */
  focus: number | null;
  isSmoothed: boolean;
  /** Which values the y axis holds. */
  frame: Frame;
}

/** Return the colour of a place, as the theme has it where an element stands. */
export function colourOf(element: Element, slot: number): string {
  return getComputedStyle(element)
    .getPropertyValue(`--job-${slot + 1}`)
    .trim();
}

/** Draw all curves, the one that stands out last and with the band of its extremes. */
export function drawCurves(chart: uPlot, shown: DrawnCurves): void {
  const { curves, focus, isSmoothed, frame } = shown;
  const colours = new Map(curves.map(({ slot }) => [slot, colourOf(chart.root, slot)]));
  const chosen = curves.find(({ slot }) => slot === focus);
  const others = curves.filter((curve) => curve !== chosen);
  const opacity = chosen ? 0.25 : 1;
  inFrame(chart, (context) => {
    context.lineJoin = "round";
    const draw = (curve: Curve, how: Pick<Look, "opacity" | "hasBand">) =>
      drawCurve(chart, context, curve, {
        ...how,
        colour: colours.get(curve.slot) ?? "",
        isSmoothed,
      });
    for (const curve of others) draw(curve, { opacity, hasBand: curves.length === 1 });
    if (chosen) draw(chosen, { opacity: 1, hasBand: true });
    drawStrange(chart, context, curves, colours);
  });
  curves
    .filter((curve) => isOutside(curve, frame))
    .forEach((curve, lane) => {
      const line = { places: curve.x, min: curve.min, max: curve.max };
      drawOutside(chart, line, { frame, colour: colours.get(curve.slot) ?? "", lane });
    });
}

interface Look {
  colour: string;
  opacity: number;
  hasBand: boolean;
  isSmoothed: boolean;
}

function drawCurve(chart: uPlot, context: Context, curve: Curve, look: Look): void {
  context.strokeStyle = context.fillStyle = look.colour;
  if (look.hasBand) {
    context.globalAlpha = 0.16;
    drawBand(chart, context, curve);
  }
  if (look.isSmoothed) {
    context.globalAlpha = 0.28 * look.opacity;
    drawLine(chart, context, curve, curve.last, { width: 1, dash: [] });
  }
  context.globalAlpha = look.opacity;
  const dash = DASHES[curve.slot] ?? [];
  drawLine(chart, context, curve, curve.smooth, { width: 1.75, dash });
  context.globalAlpha = 1;
}

type Context = CanvasRenderingContext2D;

/** The extremes of each bucket, with gaps where the line has them. */
function drawBand(chart: uPlot, context: Context, { x, min, max }: Curve): void {
  for (const [from, to] of runsOf(min)) {
    context.beginPath();
    for (let at = from; at < to; at += 1) {
      context.lineTo(...pixel(chart, x[at] ?? 0, max[at] ?? 0));
    }
    for (let at = to - 1; at >= from; at -= 1) {
      context.lineTo(...pixel(chart, x[at] ?? 0, min[at] ?? 0));
    }
    context.closePath();
    context.fill();
  }
}

/** Return where values stand without a gap: from, and the index behind the last. */
export function runsOf(values: Values): [from: number, to: number][] {
  const runs: [number, number][] = [];
  values.forEach((value, at) => {
    if (value === null) return;
    const last = runs.at(-1);
    if (last?.[1] === at) last[1] = at + 1;
    else runs.push([at, at + 1]);
  });
  return runs;
}

interface Pen {
  width: number;
  dash: readonly number[];
}

/** A line with gaps where nothing is finite; a point between two gaps is a dot. */
function drawLine(chart: uPlot, context: Context, { x }: Curve, values: Values, pen: Pen): void {
  const ratio = uPlot.pxRatio;
  context.lineWidth = pen.width * ratio;
  context.setLineDash(pen.dash.map((length) => length * ratio));
  const alone: [number, number][] = [];
  context.beginPath();
  values.forEach((value, at) => {
    if (value === null) return;
    const [left, top] = pixel(chart, x[at] ?? 0, value);
    const isBegun = (values[at - 1] ?? null) !== null;
    if (isBegun) context.lineTo(left, top);
    else context.moveTo(left, top);
    if (!isBegun && (values[at + 1] ?? null) === null) alone.push([left, top]);
  });
  context.stroke();
  context.setLineDash([]);
  for (const [left, top] of alone) {
    context.beginPath();
    context.arc(left, top, 2.5 * ratio, 0, 2 * Math.PI);
    context.fill();
  }
}

const CROSS = { size: 2.5, lane: 9, margin: 6 };

/** A cross at the bottom for every bucket that holds NaN or infinity, each job in a lane of its own. */
function drawStrange(
  chart: uPlot,
  context: Context,
  curves: readonly Curve[],
  colours: ReadonlyMap<number, string>,
): void {
  const ratio = uPlot.pxRatio;
  const bottom = chart.bbox.top + chart.bbox.height - CROSS.margin * ratio;
  const size = CROSS.size * ratio;
  const strange = curves.filter(({ nonFinite }) => nonFinite.some((some) => some > 0));
  context.lineWidth = 1.5 * ratio;
  strange.forEach((curve, lane) => {
    context.strokeStyle = colours.get(curve.slot) ?? "";
    const top = bottom - lane * CROSS.lane * ratio;
    context.beginPath();
    curve.nonFinite.forEach((some, at) => {
      if (some === 0) return;
      const left = chart.valToPos(curve.x[at] ?? 0, "x", true);
      context.moveTo(left - size, top - size);
      context.lineTo(left + size, top + size);
      context.moveTo(left - size, top + size);
      context.lineTo(left + size, top - size);
    });
    context.stroke();
  });
}

function isOutside({ min, max }: Curve, { values }: Frame): boolean {
  if (!values) return false;
  const [low, high] = values;
  return (
    max.some((value) => value !== null && value > high) ||
    min.some((value) => value !== null && value < low)
  );
}

/** On a logarithmic axis what is not positive lies below the frame. */
function pixel(chart: uPlot, place: number, value: number): [number, number] {
  const { top, height } = chart.bbox;
  const isBelow = chart.scales.y?.distr === 3 && value <= 0;
  const found = isBelow ? top + 2 * height : chart.valToPos(value, "y", true);
  // A canvas draws nothing true at places that are millions of pixels away.
  const far = MOST_HEIGHTS * height;
  return [chart.valToPos(place, "x", true), Math.min(Math.max(found, top - far), top + far)];
}

const MOST_HEIGHTS = 100;
