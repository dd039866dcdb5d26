// The value axis of a chart: its range, linear or logarithmic, and its ticks.
import type uPlot from "uplot";
import { shortest } from "@/shared/format/numbers";
import type { Extent } from "../curve";
import type { Palette } from "./palette";

export type ValueScale = "linear" | "log";

const VALUE_AXIS = 52;
const FONT_SIZE = 11;

/** Values of the y axis: those of the shown buckets with a margin, zero kept where it is near. */
export function padded([low, high]: Extent): [number, number] {
  const margin = (high - low) * 0.08 || Math.abs(low) * 0.05 || 1;
  return [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];
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
  if (scale === "linear") return axisOf(palette, { ...own, values: valueTicks });
  return axisOf(palette, {
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

export function axisOf(palette: (chart: uPlot) => Palette, own: uPlot.Axis): uPlot.Axis {
  return {
    stroke: (chart) => palette(chart).text,
    grid: { stroke: (chart) => palette(chart).grid, width: 1 },
    ticks: { show: false },
    font: `${FONT_SIZE}px system-ui, sans-serif`,
    gap: 6,
    ...own,
  };
}

function valueTicks(_: uPlot, splits: (number | null)[]): string[] {
  const shown = splits.filter((value) => value !== null);
  const greatest = Math.max(...shown.map(Math.abs));
  const gap = Math.min(...shown.slice(1).map((value, index) => value - (shown[index] ?? 0)));
  return splits.map((value) => (value === null ? "" : tick(value, greatest, gap)));
}

/** A value of an axis, with as many digits as distinguish it from its neighbour. */
export function tick(value: number, greatest: number, gap: number): string {
  if (value === 0) return "0";
  if (greatest >= 1e4) return shortest(value);
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
