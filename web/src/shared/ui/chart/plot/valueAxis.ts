// The value axis of a chart: its range, linear or logarithmic, and its ticks.
import type uPlot from "uplot";
import { tickLabels } from "@/shared/format/ticks";
import type { Extent } from "../curve";
import type { Frame } from "../frame";
import type { Palette } from "./palette";

export type ValueScale = "linear" | "log";

const VALUE_AXIS = 52;
const FONT_SIZE = 11;
const LABEL_GAP = 6;

/** Return the range of the y axis: the values with a margin, which does not cross zero. */
export function padded([low, high]: Extent): [number, number] {
  const margin = (high - low) * 0.08 || Math.abs(low) * 0.05 || 1;
  return [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];
}

type Framed = Pick<Frame, "values" | "positive">;

/** Ratio of the ends of a logarithmic axis that cannot hold all values. */
const LONGEST = 1e6;

/** Return the range of the y axis for the visible values; a logarithmic axis holds only positive ones. */
export function framed({ values, positive }: Framed, scale: ValueScale): [number, number] {
  if (scale === "linear") return values ? padded(values) : [0, 1];
  if (!values || positive === null) return [0.1, 1];
  const [low, high] = values;
  const least = low > 0 ? low : Math.max(positive, high / LONGEST);
  return [least / 1.1, Math.max(high, least) * 1.1];
}

/** The y axis; on a logarithmic one the ticks are round numbers, also within one power of ten. */
export function valueAxis(palette: (chart: uPlot) => Palette, scale: ValueScale): uPlot.Axis {
  const own = { size: sizeOf, space: 28 };
  if (scale === "linear") {
    return axisOf(palette, { ...own, values: (_, splits) => tickLabels(splits) });
  }
  return axisOf(palette, {
    ...own,
    splits: (chart, _axis, low, high) => logTicks(low, high, LOG_SPACE / chart.over.clientHeight),
    filter: (_, splits) => splits,
    values: (_, splits) => tickLabels(splits, true),
  });
}

const DIGIT_WIDTH = 6.4;

/** Room for the longest label: uPlot calls it again when labels change. */
function sizeOf(_: uPlot, labels: string[] | null): number {
  const longest = Math.max(0, ...(labels ?? []).map((label) => label.length));
  return Math.max(VALUE_AXIS, Math.ceil(longest * DIGIT_WIDTH) + LABEL_GAP + 4);
}

/** Least distance of two ticks of a logarithmic axis, in pixels. */
const LOG_SPACE = 18;
const LEAST_TICKS = 3;
const DECADES: readonly (readonly number[])[] = [
  [1],
  [1, 3],
  [1, 2, 5],
  [1, 2, 3, 4, 5, 6, 7, 8, 9],
];

/**
 * Return round numbers between two positive ones, spread evenly over a logarithmic axis.
 *
 * `room` is the least distance of two of them, as a share of the axis.
 */
export function logTicks(low: number, high: number, room = 0): number[] {
  const gap = room * Math.log10(high / low);
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const every = Math.max(Math.ceil(gap), 1);
  const powers = Array.from({ length: last - first + 1 }, (_, n) => first + n);
  for (const digits of DECADES) {
    const ticks = powers
      .filter((power) => power % every === 0)
      .flatMap((power) => digits.map((digit) => Number(`${digit}e${power}`)))
      .filter((value) => value >= low && value <= high);
    if (ticks.length >= LEAST_TICKS) return apart(ticks, gap);
  }
  // Within less than two digits the axis is nearly linear.
  const unit = 10 ** Math.floor(Math.log10(high - low)) / 2;
  const from = Math.ceil(low / unit);
  const ticks = Array.from({ length: Math.floor(high / unit) - from + 1 }, (_, n) => from + n);
  return apart(
    ticks.map((times) => Number((times * unit).toPrecision(12))),
    gap,
  );
}

/** Omit ticks that are nearer to the previous one than `gap` powers of ten. */
function apart(ticks: readonly number[], gap: number): number[] {
  let last = 0;
  return ticks.filter((value) => {
    if (last > 0 && Math.log10(value / last) < gap) return false;
    last = value;
    return true;
  });
}

export function axisOf(palette: (chart: uPlot) => Palette, own: uPlot.Axis): uPlot.Axis {
  return {
    stroke: (chart) => palette(chart).text,
    grid: { stroke: (chart) => palette(chart).grid, width: 1 },
    ticks: { show: false },
    font: `${FONT_SIZE}px system-ui, sans-serif`,
    gap: LABEL_GAP,
    ...own,
  };
}
