// Draws curves on a chart's canvas: colour and dashes distinguish jobs, one job may be highlighted.
import uPlot from "uplot";
import type { Curve, Values } from "../curve";
import { drawExtremes, drawSpikes } from "./drawExtremes";
import { type Context, colourOf, inFrame, pixel, thickness } from "./palette";

export interface DrawnCurves {
  curves: readonly Curve[];
  /** Place of the highlighted job, if any. */
  focus: number | null;
}

/**
 * Draw all curves: the highlighted one after the others, then the branches.
 *
 * The extremes of a branch lie under the other curves, its line over them.
 */
export function drawCurves(chart: uPlot, { curves, focus }: DrawnCurves): void {
  const main = curves.filter(({ isBranch }) => !isBranch);
  const branches = curves.filter(({ isBranch }) => isBranch);
  const chosen = main.find(({ slot }) => slot === focus);
  const others = main.filter((curve) => curve !== chosen);
  inFrame(chart, (context) => {
    context.lineJoin = "round";
    const opacity = chosen ? 0.25 : 1;
    for (const curve of branches) drawValues(chart, context, curve, 1);
    for (const curve of others) drawCurve(chart, context, curve, opacity);
    if (chosen) drawCurve(chart, context, chosen, 1);
    for (const curve of branches) drawAverage(chart, context, curve, 1);
  });
}

function drawCurve(chart: uPlot, context: Context, curve: Curve, opacity: number): void {
  drawValues(chart, context, curve, opacity);
  drawAverage(chart, context, curve, opacity);
}

/** Opacity of the values behind their moving average. */
const BEHIND = 0.28;

/** Draw every value of a curve: at full opacity, or behind its moving average except for spikes. */
function drawValues(chart: uPlot, context: Context, curve: Curve, opacity: number): void {
  const isBehind = curve.smooth !== curve.last;
  use(chart, context, curve, isBehind ? BEHIND * opacity : opacity);
  drawExtremes(chart, context, curve);
  if (isBehind) drawLine(chart, context, curve, { values: curve.last, width: 1, dash: [] });
  context.globalAlpha = opacity;
  drawSpikes(chart, context, curve);
  context.globalAlpha = 1;
}

/** Draw the moving average, or the newest value of each bucket without smoothing. */
function drawAverage(chart: uPlot, context: Context, curve: Curve, opacity: number): void {
  const { look, smooth } = curve;
  use(chart, context, curve, opacity);
  drawLine(chart, context, curve, { values: smooth, width: look.width, dash: look.dash });
  context.globalAlpha = 1;
}

function use(chart: uPlot, context: Context, { look }: Curve, opacity: number): void {
  context.strokeStyle = context.fillStyle = colourOf(chart.root, look.colour);
  context.globalAlpha = opacity;
}

interface Pen {
  values: Values;
  width: number;
  dash: readonly number[];
}

const DOT = { radius: 2.5, gap: 10 };

/** Draw a line with gaps at non-finite values, and dots on isolated points, or on all that have room. */
function drawLine(chart: uPlot, context: Context, { x }: Curve, pen: Pen): void {
  const { values } = pen;
  const ratio = uPlot.pxRatio;
  const [first = 0, last = first] = [x[0], x.at(-1)];
  const span = chart.valToPos(last, "x", true) - chart.valToPos(first, "x", true);
  const areFew = values.length * DOT.gap * ratio <= span;
  context.lineWidth = thickness(pen.width);
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
