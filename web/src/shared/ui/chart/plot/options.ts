// Configuration of uPlot: it makes scales, axes and the cursor; the curves are drawn by us.
import type uPlot from "uplot";
import { type Axis, gapsOf, tickOf, wholeStretch } from "../axis";
import { type Curve, type Extent, extentOfCurves } from "../curve";
import type { Frame } from "../frame";
import { type DrawnCurves, drawCurves } from "./drawCurves";
import { drawAlarms, drawStepMarks, type StepMark } from "./drawMarks";
import { paletteOf } from "./palette";
import { axisOf, framed, type ValueScale, valueAxis } from "./valueAxis";

/** What a chart shows at this moment; read anew at every drawing. */
export interface Shown extends DrawnCurves {
  marks: readonly StepMark[];
  /** Stretch of the horizontal axis. */
  stretch: Extent;
  /** Which values the y axis holds. */
  frame: Frame;
  /** Called when the pointer moves within the chart; with null when it leaves. */
  onPoint: (place: number | null, top: number) => void;
  onZoom: (range: Extent | null) => void;
}

interface Setup {
  shown: () => Shown;
  width: number;
  height: number;
  axis: Axis;
  scale: ValueScale;
}

export function optionsOf({ shown, width, height, axis, scale }: Setup): uPlot.Options {
  const palette = (chart: uPlot) => paletteOf(chart.root);
  const tick = tickOf(axis);
  return {
    width,
    height,
    padding: [8, 16, 0, 0],
    legend: { show: false },
    scales: {
      x: { time: false, range: () => [...shown().stretch] },
      y: { distr: scale === "log" ? 3 : 1, range: () => framed(shown().frame.values, scale) },
    },
    axes: [
      axisOf(palette, {
        size: 24,
        space: 64,
        incrs: gapsOf(axis),
        values: (_, splits) => splits.map(tick),
      }),
      valueAxis(palette, scale),
    ],
    series: [{}, { stroke: "transparent", points: { show: false } }],
    cursor: {
      y: false,
      points: { show: false },
      drag: { x: true, y: false, setScale: false, dist: 6 },
      bind: { dblclick: () => () => dropped(() => shown().onZoom(null)) },
    },
    hooks: {
      drawAxes: [(chart) => drawStepMarks(chart, shown().marks, palette(chart))],
      draw: [(chart) => drawShown(chart, shown())],
      setCursor: [(chart) => moved(chart, shown().onPoint)],
      setSelect: [(chart) => selected(chart, axis, shown().onZoom)],
    },
  };
}

/** The data that uPlot derives its scales from; it draws none of it. */
export function dataOf({ stretch, frame }: Pick<Shown, "stretch" | "frame">): uPlot.AlignedData {
  return [[...stretch], [...(frame.values ?? [0, 1])]];
}

/** The stretch of the axis: the chosen one, else that of the curves, with room around a point. */
export function stretchOf(curves: readonly Curve[], chosen: Extent | null): [number, number] {
  const [first, last] = chosen ?? extentOfCurves(curves) ?? [0, 1];
  return first === last ? [Math.max(first - 1, 0), last + 1] : [first, last];
}

function drawShown(chart: uPlot, shown: Shown): void {
  drawCurves(chart, shown);
  drawAlarms(chart, shown.curves, shown.frame);
}

/** uPlot calls this after each drawing too, and after the cursor was moved by code: no pointer. */
function moved(chart: uPlot, onPoint: Shown["onPoint"]): void {
  const { left = -1, top = -1 } = chart.cursor;
  const isOver = chart.over.matches(":hover");
  if (isOver && left >= 0) onPoint(chart.posToVal(left, "x"), top);
  else if (!isOver && left < 0) onPoint(null, top);
}

function selected(chart: uPlot, axis: Axis, onZoom: Shown["onZoom"]): void {
  const { left, width } = chart.select;
  if (width === 0) return;
  const from = chart.posToVal(left, "x");
  const to = chart.posToVal(left + width, "x");
  chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  onZoom(wholeStretch([from, to], axis));
}

function dropped(act: () => void): null {
  act();
  return null;
}
