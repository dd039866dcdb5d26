// What a chart draws beside its line: attempts, abandoned branches, points that are not finite.
import uPlot from "uplot";
import type { MetricLine } from "@/shared/api/types";
import type { Buckets, Frame } from "./frame";

/** A hairline at a step, with a word at its right. */
export interface StepMark {
  step: number;
  label: string;
}

export interface Palette {
  line: string;
  band: string;
  branch: string;
  mark: string;
  text: string;
  grid: string;
  bad: string;
  font: string;
}

/** Read the theme's colours where a chart stands. */
export function paletteOf(element: Element): Palette {
  const style = getComputedStyle(element);
  const colour = (name: string) => style.getPropertyValue(`--${name}`).trim();
  return {
    line: colour("accent"),
    band: `color-mix(in srgb, ${colour("accent")} 22%, transparent)`,
    branch: `color-mix(in srgb, ${colour("text-3")} 70%, transparent)`,
    mark: `color-mix(in srgb, ${colour("line-strong")} 75%, transparent)`,
    text: colour("text-3"),
    grid: colour("line"),
    bad: colour("bad"),
    font: style.fontFamily,
  };
}

/** Draw within the plot's frame, and leave the canvas as it was. */
export function inFrame(chart: uPlot, draw: (context: CanvasRenderingContext2D) => void): void {
  const { ctx: context, bbox } = chart;
  context.save();
  context.beginPath();
  context.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  context.clip();
  draw(context);
  context.restore();
}

/** Hairlines, each with its label where that fits before the next one. */
export function drawMarks(chart: uPlot, marks: readonly StepMark[], palette: Palette): void {
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
      context.fillText(mark.label, x + 4 * ratio, top + 3 * ratio);
    });
  });
}

/** Thin dashed lines. */
export function drawBranches(
  chart: uPlot,
  branches: readonly MetricLine[],
  palette: Palette,
): void {
  const ratio = uPlot.pxRatio;
  inFrame(chart, (context) => {
    context.strokeStyle = palette.branch;
    context.lineWidth = 1.25 * ratio;
    context.setLineDash([4 * ratio, 3 * ratio]);
    for (const line of branches) {
      context.beginPath();
      trace(chart, context, line);
      context.stroke();
    }
  });
}

function trace(chart: uPlot, context: CanvasRenderingContext2D, line: MetricLine): void {
  let isDown = false;
  line.steps.forEach((step, index) => {
    const value = line.last[index] ?? null;
    if (value === null) {
      isDown = false;
      return;
    }
    const x = chart.valToPos(step, "x", true);
    const y = chart.valToPos(value, "y", true);
    if (isDown) context.lineTo(x, y);
    else context.moveTo(x, y);
    isDown = true;
  });
}

const TICK = { width: 2, height: 7 };

/** A tick at the bottom for every bucket that holds NaN or infinity. */
export function drawNonFinite(chart: uPlot, lines: readonly MetricLine[], palette: Palette): void {
  const ratio = uPlot.pxRatio;
  inFrame(chart, (context) => {
    const bottom = chart.bbox.top + chart.bbox.height;
    context.fillStyle = palette.bad;
    for (const line of lines) {
      line.non_finite.forEach((some, index) => {
        if (some === 0) return;
        const left = chart.valToPos(line.first_steps[index] ?? 0, "x", true);
        const right = chart.valToPos(line.steps[index] ?? 0, "x", true);
        const width = Math.max(right - left, TICK.width * ratio);
        const height = TICK.height * ratio;
        context.fillRect((left + right - width) / 2, bottom - height, width, height);
      });
    }
  });
}

const WEDGE = { width: 4, height: 6, margin: 3, lane: 9, gap: 9 };

interface OutsideLook {
  frame: Frame;
  colour: string;
  /** Row of wedges, counted from the edge of the frame. */
  lane: number;
}

/** Wedges at the edge of the frame that point to buckets with values outside the axis. */
export function drawOutside(
  chart: uPlot,
  { places, min, max }: Buckets & { places: readonly number[] },
  { frame, colour, lane }: OutsideLook,
): void {
  const { values, above, below } = frame;
  if (!values || (above === null && below === null)) return;
  const ratio = uPlot.pxRatio;
  const { top, height } = chart.bbox;
  const inset = (WEDGE.margin + lane * WEDGE.lane) * ratio;
  const [low, high] = values;
  inFrame(chart, (context) => {
    context.fillStyle = colour;
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
  });
}
