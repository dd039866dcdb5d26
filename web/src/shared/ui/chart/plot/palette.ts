// Colours of a chart, read from the theme, and drawing within the plot's frame.
import type uPlot from "uplot";

export interface Palette {
  mark: string;
  text: string;
  grid: string;
  font: string;
}

/** Read the theme's colours where a chart stands. */
export function paletteOf(element: Element): Palette {
  return {
    mark: `color-mix(in srgb, ${colourOf(element, "line-strong")} 75%, transparent)`,
    text: colourOf(element, "text-3"),
    grid: colourOf(element, "line"),
    font: getComputedStyle(element).fontFamily,
  };
}

/** Return a colour of the theme as it is where an element stands. */
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
