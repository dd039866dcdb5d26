// How uPlot is set up for curves of several jobs: it has scales, axes and cursor, we draw.
import type uPlot from "uplot";
import { paletteOf } from "@/shared/ui/chart/draw";
import type { Extent } from "@/shared/ui/chart/lines";
import { axis as axisOf, framed, valueAxis } from "@/shared/ui/chart/options";
import { gapsOf, tickOf } from "./axis";
import { type DrawnCurves, drawCurves } from "./draw";
import type { Axis } from "./view";

/** What a chart shows at this moment; read anew at every drawing. */
export interface Shown extends DrawnCurves {
  /** Stretch of the axis. */
  range: Extent;
  /** Called when the pointer moves within the chart; with null when it leaves. */
  onPoint: (place: number | null, top: number) => void;
  onZoom: (range: Extent | null) => void;
}

interface Setup {
  shown: () => Shown;
  width: number;
  height: number;
  axis: Axis;
  isLog: boolean;
}

export function optionsOf({ shown, width, height, axis, isLog }: Setup): uPlot.Options {
  const palette = (chart: uPlot) => paletteOf(chart.root);
  const tick = tickOf(axis);
  const scale = isLog ? "log" : "linear";
  return {
    width,
    height,
    padding: [8, 16, 0, 0],
    legend: { show: false },
    scales: {
      x: { time: false, range: () => roomy(shown().range) },
      y: {
        distr: isLog ? 3 : 1,
        range: () => framed(shown().frame.values, scale),
      },
    },
    axes: [
      axisOf(palette, {
        size: 24,
        space: 72,
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
      bind: {
        dblclick: () => () => {
          shown().onZoom(null);
          return null;
        },
      },
    },
    hooks: {
      draw: [(chart) => drawCurves(chart, shown())],
      setCursor: [(chart) => moved(chart, shown().onPoint)],
      setSelect: [(chart) => selected(chart, axis, shown().onZoom)],
    },
  };
}

/** What uPlot is given to make its scales of; it draws none of it. */
export function dataOf({ range, frame }: Pick<Shown, "range" | "frame">): uPlot.AlignedData {
  return [[...range], [...(frame.values ?? [0, 1])]];
}

/** At least some room around a single point. */
function roomy([first, last]: Extent): [number, number] {
  return first === last ? [Math.max(first - 1, 0), last + 1] : [first, last];
}

/** uPlot tells its cursor after each drawing too, and after we moved it: that is no pointer. */
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

/** A stretch as the URL holds it: whole steps and tokens, seconds with one decimal. */
export function wholeStretch([from, to]: Extent, axis: Axis): Extent {
  const unit = axis === "seconds" ? 0.1 : 1;
  const first = Math.max(0, Math.floor(from / unit));
  const last = Math.max(Math.ceil(to / unit), first + 1);
  return axis === "seconds" ? [first / 10, last / 10] : [first, last];
}
