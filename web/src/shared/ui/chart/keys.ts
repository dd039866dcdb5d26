// Keys of a chart: the cursor, the highlighted job, zoom.
import type { KeyboardEvent } from "react";
import { type Axis, wholeStretch } from "./axis";
import type { ChartCursor } from "./cursor";
import { type Curve, type Extent, neighbourPlace } from "./curve";

const ARROWS: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1 };
const CHOICES: Record<string, number> = { ArrowUp: -1, ArrowDown: 1 };
const ZOOMS: Record<string, number> = { "+": 0.5, "-": 2 };
const FAR = 10;

interface KeySetup {
  id: string;
  /** The curves except branches. */
  curves: readonly Curve[];
  axis: Axis;
  cursor: ChartCursor;
  /** Visible stretch of the axis. */
  stretch: Extent;
  onZoom: (range: Extent | null) => void;
  focus: number | null;
  onFocus?: (slot: number | null) => void;
}

/**
 * Left and right move the cursor, with Shift faster; up and down choose the highlighted job;
 * + and - zoom around the cursor; Escape shows everything.
 */
export function onChartKey(event: KeyboardEvent, setup: KeySetup): void {
  const { id, curves, cursor, focus, onFocus, onZoom } = setup;
  const [arrow, choice, zoom] = [ARROWS[event.key], CHOICES[event.key], ZOOMS[event.key]];
  const place = cursor.place?.step ?? null;
  if (arrow) {
    const next = neighbourPlace(curves, place, arrow * (event.shiftKey ? FAR : 1));
    if (next !== null) cursor.move({ step: next, source: id });
  } else if (choice && onFocus) onFocus(nextSlot(curves, focus, choice));
  else if (zoom) onZoom(zoomed(setup, place, zoom));
  // Also without a drawn zoom: the key may come before the last zoom is drawn.
  else if (event.key === "Escape") onZoom(null);
  else return;
  event.preventDefault();
}

function nextSlot(curves: readonly Curve[], focus: number | null, by: number): number | null {
  const slots = curves.map(({ slot }) => slot);
  const at = focus === null ? (by > 0 ? -1 : slots.length) : slots.indexOf(focus);
  return slots[(at + by + slots.length) % slots.length] ?? null;
}

function zoomed({ stretch, axis }: KeySetup, place: number | null, by: number): Extent {
  const [first, last] = stretch;
  const middle = place ?? last;
  return wholeStretch([middle - (middle - first) * by, middle + (last - middle) * by], axis);
}
