// Draws curves on a chart's canvas: colour and dashes distinguish jobs, one of them may stand out.
import uPlot from "uplot";
import type { Curve, Values } from "../curve";
import { type Context, colourOf, inFrame } from "./palette";

export interface DrawnCurves {
  curves: readonly Curve[];
  /** Place of the job that stands out, if any does. */
  focus: number | null;
}

interface Stroke {
  opacity: number;
  hasBand: boolean;
}

/** Draw all curves, the one that stands out with the band of its extremes; branches come last. */
export function drawCurves(chart: uPlot, { curves, focus }: DrawnCurves): void {
  const main = curves.filter(({ isBranch }) => !isBranch);
  const chosen = main.find(({ slot }) => slot === focus);
  const others = main.filter((curve) => curve !== chosen);
  inFrame(chart, (context) => {
    context.lineJoin = "round";
    const draw = (curve: Curve, stroke: Stroke) => drawCurve(chart, context, curve, stroke);
    const opacity = chosen ? 0.25 : 1;
    for (const curve of others) draw(curve, { opacity, hasBand: main.length === 1 });
    if (chosen) draw(chosen, { opacity: 1, hasBand: true });
    for (const curve of curves) if (curve.isBranch) draw(curve, { opacity: 0.7, hasBand: false });
  });
}

function drawCurve(chart: uPlot, context: Context, curve: Curve, stroke: Stroke): void {
  const { look, smooth, last } = curve;
  context.strokeStyle = context.fillStyle = colourOf(chart.root, look.colour);
  if (stroke.hasBand) {
    context.globalAlpha = 0.18;
    drawBand(chart, context, curve);
  }
  if (smooth !== last) {
    context.globalAlpha = 0.28 * stroke.opacity;
    drawLine(chart, context, curve, { values: last, width: 1, dash: [] });
  }
  context.globalAlpha = stroke.opacity;
  drawLine(chart, context, curve, { values: smooth, width: look.width, dash: look.dash });
  context.globalAlpha = 1;
}

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
  values: Values;
  width: number;
  dash: readonly number[];
}

const DOT = { radius: 2.5, gap: 10 };

/** A line with gaps where nothing is finite; dots on points without neighbours, or on all that have room. */
function drawLine(chart: uPlot, context: Context, { x }: Curve, pen: Pen): void {
  const { values } = pen;
  const ratio = uPlot.pxRatio;
  const [first = 0, last = first] = [x[0], x.at(-1)];
  const span = chart.valToPos(last, "x", true) - chart.valToPos(first, "x", true);
  const areFew = values.length * DOT.gap * ratio <= span;
  context.lineWidth = pen.width * ratio;
  context.setLineDash(pen.dash.map((length) => length * ratio));
  const dots: [number, number][] = [];
  context.beginPath();
  values.forEach((value, at) => {
    if (value === null) return;
    const [left, top] = pixel(chart, x[at] ?? 0, value);
    const isBegun = (values[at - 1] ?? null) !== null;
    if (isBegun) context.lineTo(left, top);
    else context.moveTo(left, top);
    const isAlone = !isBegun && (values[at + 1] ?? null) === null;
    if (isAlone || areFew) dots.push([left, top]);
  });
  context.stroke();
  context.setLineDash([]);
  for (const [left, top] of dots) {
    context.beginPath();
    context.arc(left, top, DOT.radius * ratio, 0, 2 * Math.PI);
    context.fill();
  }
}

const MOST_HEIGHTS = 100;

/** On a logarithmic axis what is not positive lies below the frame. */
function pixel(chart: uPlot, place: number, value: number): [number, number] {
  const { top, height } = chart.bbox;
  const isBelow = chart.scales.y?.distr === 3 && value <= 0;
  const found = isBelow ? top + 2 * height : chart.valToPos(value, "y", true);
  // A canvas draws wrong lines to places that are millions of pixels away.
  const far = MOST_HEIGHTS * height;
  return [chart.valToPos(place, "x", true), Math.min(Math.max(found, top - far), top + far)];
}
