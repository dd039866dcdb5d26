// Keeps a uPlot in an element, in step with the properties of the chart.
import { type RefObject, useEffect, useRef, useState } from "react";
import uPlot from "uplot";
import { watchTheme } from "@/shared/theme/theme";
import type { Axis } from "../axis";
import type { ChartCursor } from "../cursor";
import { type Curve, readingAt } from "../curve";
import { dataOf, optionsOf, type Shown } from "./options";
import type { ValueScale } from "./valueAxis";

export interface PlotSetup extends Omit<Shown, "onPoint"> {
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
    onPoint: (place, top) => {
      if (place !== null) cursor.move({ step: place, source: id });
      else if (cursor.place?.source !== id || element.current === document.activeElement) return;
      else cursor.move(null);
      // At the very top stands a cursor that another chart or the keyboard moved.
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
  // biome-ignore lint/correctness/useExhaustiveDependencies: curves and marks are drawn anew too
  useEffect(() => {
    chart?.setData(dataOf({ stretch: [first, last], frame }));
  }, [chart, curves, marks, frame, first, last]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: another job stands out now
  useEffect(() => chart?.redraw(false, false), [chart, focus]);
  useEffect(() => {
    if (!chart) return;
    return cursor.watch(() => {
      const { place } = cursor;
      const left = place ? chart.valToPos(place.step, "x") : -10;
      chart.setCursor({ left, top: place ? 0 : -10 }, false);
    });
  }, [chart, cursor]);
  return chart;
}

const NEAR_PIXELS = 24;

/** Return the place of the job whose curve passes under the pointer. */
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
