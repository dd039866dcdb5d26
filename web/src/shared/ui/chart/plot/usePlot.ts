// Keeps a uPlot in step with the chart: uPlot makes scales, axes and the cursor; `drawCurves` draws
// the curves on its canvas.
import { type RefObject, useEffect, useRef, useState } from "react";
import uPlot from "uplot";
import { watchTheme } from "@/shared/theme/theme";
import { type Axis, gapsOf, labelsOf, wholeStretch } from "../axis";
import type { ChartCursor } from "../cursor";
import { type Curve, type Extent, readingAt } from "../curve";
import type { Frame } from "../frame";
import { type DrawnCurves, drawCurves } from "./drawCurves";
import { drawAlarms, drawStepMarks, type StepMark } from "./drawMarks";
import { paletteOf } from "./palette";
import { axisOf, framed, type ValueScale, valueAxis } from "./valueAxis";

/** The present content of a chart; read again at every drawing. */
export interface Shown extends DrawnCurves {
  marks: readonly StepMark[];
  /** Stretch of the horizontal axis. */
  stretch: Extent;
  /** Which values the y axis holds. */
  frame: Frame;
  /** Called when the pointer moves within the chart; with null when it leaves. */
  onPoint: (place: number | null, top: number) => void;
  /** Called after each drawing. */
  onDrawn: (chart: uPlot) => void;
  onZoom: (range: Extent | null) => void;
}

export interface PlotSetup extends Omit<Shown, "onPoint" | "onDrawn"> {
  id: string;
  axis: Axis;
  scale: ValueScale;
  height: number;
  cursor: ChartCursor;
  onFocus?: (slot: number | null) => void;
}

export function usePlot(element: RefObject<HTMLDivElement | null>, setup: PlotSetup): uPlot | null {
  const { id, curves, marks, stretch, frame, focus, cursor, axis, scale, height, onFocus } = setup;
  const [chart, setChart] = useState<uPlot | null>(null);
  const present: Shown = {
    ...setup,
    onDrawn: (drawn) => {
      // After a change of the scale the pointer is at another place, or the place is at another pixel.
      const { left = -1 } = drawn.cursor;
      const isOwn = isUnderPointer(drawn) && left >= 0 && cursor.place?.source === id;
      if (isOwn) cursor.move({ step: drawn.posToVal(left, "x"), source: id });
      else placeCursor(drawn, cursor);
    },
    onPoint: (place, top) => {
      if (place !== null) cursor.move({ step: place, source: id });
      else if (cursor.place?.source !== id || element.current === document.activeElement) return;
      else cursor.move(null);
      // A cursor at the very top was moved by another chart or by the keyboard.
      if (place === null) onFocus?.(null);
      else if (top > 0 && chart) onFocus?.(nearestTo(chart, curves, place, top));
    },
  };
  const shown = useRef(present);
  shown.current = present;
  useEffect(() => {
    const parent = element.current;
    if (!parent) return;
    const { clientWidth: width } = parent;
    const options = optionsOf({ shown: () => shown.current, width, height, axis, scale });
    const made = new uPlot(options, dataOf(shown.current), parent);
    setChart(made);
    const resized = new ResizeObserver(() => made.setSize({ width: parent.clientWidth, height }));
    resized.observe(parent);
    const unwatch = watchTheme(() => made.redraw(false, true));
    return () => {
      unwatch();
      resized.disconnect();
      made.destroy();
      setChart(null);
    };
  }, [element, height, axis, scale]);
  const [first, last] = stretch;
  // biome-ignore lint/correctness/useExhaustiveDependencies: curves and marks are drawn again too
  useEffect(() => {
    chart?.setData(dataOf({ stretch: [first, last], frame }));
  }, [chart, curves, marks, frame, first, last]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: another job is highlighted now
  useEffect(() => chart?.redraw(false, false), [chart, focus]);
  useEffect(() => {
    if (!chart) return;
    return cursor.watch(() => placeCursor(chart, cursor));
  }, [chart, cursor]);
  return chart;
}

function isUnderPointer({ over }: uPlot): boolean {
  return over.matches(":hover");
}

/** Show the shared cursor; a place outside the chart puts it left of the plot, out of view. */
function placeCursor(chart: uPlot, { place }: ChartCursor): void {
  const left = place ? chart.valToPos(place.step, "x") : -1;
  const isShown = left >= 0 && left <= chart.over.clientWidth;
  chart.setCursor(isShown ? { left, top: 0 } : { left: -10, top: -10 }, false);
}

const NEAR_PIXELS = 24;

/** Return the place of the job with a curve under the pointer. */
function nearestTo(
  chart: uPlot,
  curves: readonly Curve[],
  place: number,
  top: number,
): number | null {
  let [best, distance]: [number | null, number] = [null, NEAR_PIXELS];
  for (const curve of curves) {
    const value = readingAt(curve, place)?.smooth ?? null;
    const away = value === null ? distance : Math.abs(chart.valToPos(value, "y") - top);
    if (away < distance) [best, distance] = [curve.slot, away];
  }
  return best;
}

interface PlotOptions {
  shown: () => Shown;
  width: number;
  height: number;
  axis: Axis;
  scale: ValueScale;
}

function optionsOf({ shown, width, height, axis, scale }: PlotOptions): uPlot.Options {
  const palette = (chart: uPlot) => paletteOf(chart.root);
  return {
    width,
    height,
    padding: [8, 16, 0, 0],
    legend: { show: false },
    scales: {
      x: { time: false, range: () => [...shown().stretch] },
      y: { distr: scale === "log" ? 3 : 1, range: () => framed(shown().frame, scale) },
    },
    axes: [
      axisOf(palette, {
        size: 24,
        space: 64,
        incrs: gapsOf(axis),
        values: (_, splits) => labelsOf(axis, splits),
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
      draw: [
        (chart) => {
          const { curves, focus, frame } = shown();
          drawCurves(chart, { curves, focus });
          drawAlarms(chart, curves, frame);
          shown().onDrawn(chart);
        },
      ],
      setCursor: [(chart) => moved(chart, shown().onPoint)],
      setSelect: [(chart) => selected(chart, axis, shown().onZoom)],
    },
  };
}

/** Return the data for uPlot's scales, of which uPlot draws nothing. */
function dataOf({ stretch, frame }: Pick<Shown, "stretch" | "frame">): uPlot.AlignedData {
  return [[...stretch], [...(frame.values ?? [0, 1])]];
}

/** Report a move of the pointer: uPlot also calls this after each drawing and after code moves the cursor. */
function moved(chart: uPlot, onPoint: Shown["onPoint"]): void {
  const { left = -1, top = -1 } = chart.cursor;
  const isOver = isUnderPointer(chart);
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
