// Marks of a chart: starts of attempts, buckets with NaN, buckets outside the axis.
import uPlot from "uplot";
import type { Curve } from "../curve";
import type { Frame } from "../frame";
import { type Context, colourOf, inFrame, type Palette } from "./palette";

/** A hairline at a step, with a word at its right. */
export interface StepMark {
  step: number;
  label: string;
}

/** Labels begin below the wedges of values outside the axis. */
const LABEL_TOP = 11;

/** Draw hairlines, each with its label if that fits before the next one. */
export function drawStepMarks(chart: uPlot, marks: readonly StepMark[], palette: Palette): void {
  const ratio = uPlot.pxRatio;
  inFrame(chart, (context) => {
    const { left, top, width, height } = chart.bbox;
    context.font = `${10.5 * ratio}px ${palette.font}`;
    context.textBaseline = "top";
    context.textAlign = "left";
    context.lineWidth = ratio;
    marks.forEach((mark, index) => {
      const x = Math.round(Math.max(chart.valToPos(mark.step, "x", true), left)) + ratio / 2;
      const next = marks[index + 1];
      const end = next ? chart.valToPos(next.step, "x", true) : left + width;
      if (end <= left || x > left + width) return;
      context.strokeStyle = palette.mark;
      context.beginPath();
      context.moveTo(x, top);
      context.lineTo(x, top + height);
      context.stroke();
      if (context.measureText(mark.label).width + 8 * ratio > Math.min(end, left + width) - x)
        return;
      context.fillStyle = palette.text;
      context.fillText(mark.label, x + 4 * ratio, top + LABEL_TOP * ratio);
    });
  });
}

/** Draw ticks at the bottom for NaN, and wedges at the edges for values outside the axis. */
export function drawAlarms(chart: uPlot, curves: readonly Curve[], frame: Frame): void {
  inFrame(chart, (context) => {
    inLanes(
      curves.filter(({ nonFinite }) => nonFinite.some((some) => some > 0)),
      (curve, lane) => drawNonFinite({ chart, context, curve, lane }),
    );
    inLanes(
      curves.filter((curve) => isOutside(curve, frame)),
      (curve, lane) => drawOutside({ chart, context, curve, lane }, frame),
    );
  });
}

/** Draw marks of each colour in their own lane, counted from the edge of the frame. */
function inLanes(curves: readonly Curve[], draw: (curve: Curve, lane: number) => void): void {
  const alarms = [...new Set(curves.map(({ look }) => look.alarm))];
  for (const curve of curves) draw(curve, alarms.indexOf(curve.look.alarm));
}

interface Lane {
  chart: uPlot;
  context: Context;
  curve: Curve;
  lane: number;
}

const TICK = { width: 2, height: 7, lane: 9 };

/** Draw a tick for every bucket that holds NaN or infinity. */
function drawNonFinite({ chart, context, curve, lane }: Lane): void {
  const ratio = uPlot.pxRatio;
  const height = TICK.height * ratio;
  const top = chart.bbox.top + chart.bbox.height - lane * TICK.lane * ratio - height;
  context.fillStyle = colourOf(chart.root, curve.look.alarm);
  curve.nonFinite.forEach((some, at) => {
    if (some === 0) return;
    const end = curve.x[at] ?? 0;
    const left = chart.valToPos(curve.begins?.[at] ?? end, "x", true);
    const right = chart.valToPos(end, "x", true);
    const width = Math.max(right - left, TICK.width * ratio);
    context.fillRect((left + right - width) / 2, top, width, height);
  });
}

const WEDGE = { width: 4, height: 6, margin: 3, lane: 9, gap: 9 };

/** Draw wedges to buckets with values outside the axis, as many as fit side by side. */
function drawOutside({ chart, context, curve, lane }: Lane, { values }: Frame): void {
  const { x: places, min, max } = curve;
  const ratio = uPlot.pxRatio;
  const { top, height } = chart.bbox;
  const inset = (WEDGE.margin + lane * WEDGE.lane) * ratio;
  const [low, high] = values ?? [Number.NEGATIVE_INFINITY, Number.POSITIVE_INFINITY];
  context.fillStyle = colourOf(chart.root, curve.look.alarm);
  const edges = [
    { tip: top + inset, down: 1, isOut: (at: number) => (max[at] ?? high) > high },
    { tip: top + height - inset, down: -1, isOut: (at: number) => (min[at] ?? low) < low },
  ];
  for (const { tip, down, isOut } of edges) {
    const base = tip + down * WEDGE.height * ratio;
    let last = Number.NEGATIVE_INFINITY;
    for (const [at, place] of places.entries()) {
      const x = chart.valToPos(place, "x", true);
      if (!isOut(at) || x - last < WEDGE.gap * ratio) continue;
      last = x;
      context.beginPath();
      context.moveTo(x, tip);
      context.lineTo(x - WEDGE.width * ratio, base);
      context.lineTo(x + WEDGE.width * ratio, base);
      context.fill();
    }
  }
}

function isOutside({ min, max }: Curve, { values }: Frame): boolean {
  if (!values) return false;
  const [low, high] = values;
  return (
    max.some((value) => value !== null && value > high) ||
    min.some((value) => value !== null && value < low)
  );
}
