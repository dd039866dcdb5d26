// Colours of a chart, read from the theme, and drawing within the plot's frame.
import uPlot from "uplot";

export interface Palette {
  mark: string;
  text: string;
  grid: string;
  font: string;
}

/** Read the theme's colours at a chart's element. */
export function paletteOf(element: Element): Palette {
  return {
    mark: `color-mix(in srgb, ${colourOf(element, "line-strong")} 75%, transparent)`,
    text: colourOf(element, "text-3"),
    grid: colourOf(element, "line"),
    font: getComputedStyle(element).fontFamily,
  };
}

/** Return the computed value of a theme's colour at an element. */
export function colourOf(element: Element, name: string): string {
  return getComputedStyle(element).getPropertyValue(`--${name}`).trim();
}

export type Context = CanvasRenderingContext2D;

/** Draw within the plot's frame, and leave the canvas as it was. */
export function inFrame(chart: uPlot, draw: (context: Context) => void): void {
  const { ctx: context, bbox } = chart;
  context.save();
  context.beginPath();
  context.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  context.clip();
  draw(context);
  context.restore();
}

/** The least width, in device pixels, at which a line of any slope fills whole pixels. */
const WHOLE = 2;

/** Return a line's width in whole device pixels: a thinner line would blend with the background. */
export function thickness(width: number): number {
  return Math.max(Math.round(width * uPlot.pxRatio), WHOLE);
}

const MAX_HEIGHTS = 100;

/** Return the pixel of a value; on a logarithmic axis values up to 0 lie below the frame. */
export function pixel(chart: uPlot, place: number, value: number): [number, number] {
  const { top, height } = chart.bbox;
  const isBelow = chart.scales.y?.distr === 3 && value <= 0;
  const found = isBelow ? top + 2 * height : chart.valToPos(value, "y", true);
  // A canvas draws wrong lines to places millions of pixels away.
  const far = MAX_HEIGHTS * height;
  return [chart.valToPos(place, "x", true), Math.min(Math.max(found, top - far), top + far)];
}
