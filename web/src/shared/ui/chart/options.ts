// How uPlot is set up for a chart: scales, axes, the line with its band, and what is drawn beside.
import type uPlot from "uplot";
import type { MetricLine } from "@/shared/api/types";
import { short } from "@/shared/format/numbers";
import {
  drawBranches,
  drawMarks,
  drawNonFinite,
  drawOutside,
  type Palette,
  paletteOf,
  type StepMark,
} from "./draw";
import { type Frame, frameOfValues } from "./frame";
import { bucketsBetween, courseOf, type Extent, extentOf } from "./lines";

export type ValueScale = "linear" | "log";

/** What a chart shows at this moment; read anew at every drawing. */
export interface Shown {
  lines: readonly MetricLine[];
  marks: readonly StepMark[];
  /** Steps that are shown; all of them when null. */
  range: Extent | null;
  /** Which values the y axis holds. */
  frame: Frame;
  onMove: (step: number | null) => void;
  onZoom: (range: Extent | null) => void;
}

interface Setup {
  shown: () => Shown;
  width: number;
  height: number;
  scale: ValueScale;
}

const VALUE_AXIS = 52;
const STEP_AXIS = 24;
const FONT_SIZE = 11;

export function optionsOf({ shown, width, height, scale }: Setup): uPlot.Options {
  const palette = (chart: uPlot) => paletteOf(chart.root);
  return {
    width,
    height,
    padding: [8, 12, 0, 0],
    legend: { show: false },
    scales: {
      x: { time: false, range: () => [...stepRange(shown())] },
      y: { distr: scale === "log" ? 3 : 1, range: () => framed(shown().frame.values, scale) },
    },
    axes: [
      axis(palette, { size: STEP_AXIS, space: 64, values: (_, splits) => splits.map(wholeStep) }),
      valueAxis(palette, scale),
    ],
    series: [
      {},
      { stroke: "transparent", points: { show: false } },
      { stroke: "transparent", points: { show: false } },
      {
        stroke: (chart) => palette(chart).line,
        width: 1.5,
        points: { size: 5, fill: (chart) => palette(chart).line },
      },
    ],
    bands: [{ series: [1, 2], fill: (chart) => palette(chart).band }],
    cursor: {
      y: false,
      points: { show: false },
      drag: { x: true, y: false, setScale: false, dist: 6 },
      bind: { dblclick: () => () => dropped(() => shown().onZoom(null)) },
    },
    hooks: {
      drawAxes: [(chart) => drawMarks(chart, shown().marks, palette(chart))],
      draw: [(chart) => drawBeside(chart, shown(), palette(chart))],
      setCursor: [(chart) => shown().onMove(stepUnder(chart))],
      setSelect: [(chart) => selected(chart, shown().onZoom)],
    },
  };
}

/** Steps of the x axis: at least one to each side of a single point. */
export function stepRange({ lines, range }: Pick<Shown, "lines" | "range">): Extent {
  const [first, last] = range ?? extentOf(lines) ?? [0, 1];
  return first === last ? [first - 1, last + 1] : [first, last];
}

/** Values of the y axis: those of the shown buckets with a margin, zero kept where it is near. */
export function padded([low, high]: Extent): [number, number] {
  const margin = (high - low) * 0.08 || Math.abs(low) * 0.05 || 1;
  return [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];
}

/** The values of the y axis for the steps that are shown. */
export function frameOfLines(shown: Pick<Shown, "lines" | "range">, isFull: boolean): Frame {
  const steps = stepRange(shown);
  return frameOfValues(
    shown.lines.map((line) => bucketsBetween(line, steps)),
    isFull,
  );
}

/** The y axis around the values that are shown; on a logarithmic one only positive ones fit. */
export function framed(found: Extent | null, scale: ValueScale): [number, number] {
  if (!found) return scale === "log" ? [0.1, 1] : [0, 1];
  if (scale === "linear") return padded(found);
  const [low, high] = found;
  const least = low > 0 ? low : Math.min(high, 1) / 1e6;
  return [least / 1.1, Math.max(high, least) * 1.1];
}

/** The y axis; on a logarithmic one the ticks are round numbers, also within one power of ten. */
export function valueAxis(palette: (chart: uPlot) => Palette, scale: ValueScale): uPlot.Axis {
  const own = { size: VALUE_AXIS, space: 28 };
  if (scale === "linear") return axis(palette, { ...own, values: valueTicks });
  return axis(palette, {
    ...own,
    splits: (_chart, _axis, low, high) => logTicks(low, high),
    filter: (_, splits) => splits,
    values: (_, splits) => splits.map((value) => tick(value, value, value)),
  });
}

const LEAST_TICKS = 3;
const DECADES: readonly (readonly number[])[] = [
  [1],
  [1, 3],
  [1, 2, 5],
  [1, 2, 3, 4, 5, 6, 7, 8, 9],
];

/** Round numbers between two positive ones, evenly strewn over a logarithmic axis. */
export function logTicks(low: number, high: number): number[] {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const powers = Array.from({ length: last - first + 1 }, (_, n) => first + n);
  for (const digits of DECADES) {
    const ticks = powers
      .flatMap((power) => digits.map((digit) => Number(`${digit}e${power}`)))
      .filter((value) => value >= low && value <= high);
    if (ticks.length >= LEAST_TICKS) return ticks;
  }
  // Within less than two digits the axis is as good as linear.
  const gap = 10 ** Math.floor(Math.log10(high - low)) / 2;
  const from = Math.ceil(low / gap);
  const ticks = Array.from({ length: Math.floor(high / gap) - from + 1 }, (_, n) => from + n);
  return ticks.map((times) => Number((times * gap).toPrecision(12)));
}

export function axis(palette: (chart: uPlot) => Palette, own: uPlot.Axis): uPlot.Axis {
  return {
    stroke: (chart) => palette(chart).text,
    grid: { stroke: (chart) => palette(chart).grid, width: 1 },
    ticks: { show: false },
    font: `${FONT_SIZE}px system-ui, sans-serif`,
    gap: 6,
    ...own,
  };
}

export function wholeStep(step: number): string {
  return Number.isInteger(step) ? withoutZeros(short(step)) : "";
}

function valueTicks(_: uPlot, splits: (number | null)[]): string[] {
  const shown = splits.filter((value) => value !== null);
  const greatest = Math.max(...shown.map(Math.abs));
  const gap = Math.min(...shown.slice(1).map((value, index) => value - (shown[index] ?? 0)));
  return splits.map((value) => (value === null ? "" : tick(value, greatest, gap)));
}

/** A value of an axis, with as many digits as tell it from its neighbour. */
export function tick(value: number, greatest: number, gap: number): string {
  if (value === 0) return "0";
  if (greatest >= 1e4) return withoutZeros(short(value));
  if (greatest < 1e-2) return value.toExponential(1).replace(".0e", "e");
  return value.toFixed(decimalsOf(gap));
}

/** The fewest decimals with which multiples of a gap are exact, up to six. */
function decimalsOf(gap: number): number {
  let decimals = 0;
  while (decimals < 6 && Math.abs(gap * 10 ** decimals - Math.round(gap * 10 ** decimals)) > 1e-6) {
    decimals += 1;
  }
  return decimals;
}

/** `1.50k` without the zeros that say nothing: `1.5k`. */
function withoutZeros(text: string): string {
  return text.replace(/\.(\d*?)0+(?=[kMGTP]$)/, (_, kept: string) => (kept ? `.${kept}` : ""));
}

function drawBeside(chart: uPlot, { lines, frame }: Shown, palette: Palette): void {
  const course = courseOf(lines);
  drawBranches(
    chart,
    lines.filter((line) => line !== course),
    palette,
  );
  drawNonFinite(chart, lines, palette);
  const marked = lines.map(({ steps, min, max }) => ({ places: steps, min, max }));
  for (const line of marked) drawOutside(chart, line, { frame, colour: palette.bad, lane: 0 });
}

function stepUnder(chart: uPlot): number | null {
  const { left = -1 } = chart.cursor;
  return left < 0 ? null : chart.posToVal(left, "x");
}

function selected(chart: uPlot, onZoom: (range: Extent) => void): void {
  const { left, width } = chart.select;
  if (width === 0) return;
  const first = Math.floor(chart.posToVal(left, "x"));
  const last = Math.ceil(chart.posToVal(left + width, "x"));
  chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  if (last > first) onZoom([Math.max(first, 0), last]);
}

function dropped(act: () => void): null {
  act();
  return null;
}
