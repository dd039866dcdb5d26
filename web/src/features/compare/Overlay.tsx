// One chart of a comparison: the curves of several jobs over one axis, with one cursor for all charts.
import {
  type KeyboardEvent,
  type RefObject,
  useEffect,
  useId,
  useMemo,
  useRef,
  useState,
} from "react";
import uPlot from "uplot";
import { Button } from "@/shared/ui/Button";
import { type ChartCursor, useCursorPlace } from "@/shared/ui/chart/cursor";
import { type Frame, frameOfValues } from "@/shared/ui/chart/frame";
import type { Extent } from "@/shared/ui/chart/lines";
import { Outside } from "@/shared/ui/chart/Outside";
import { watchTheme } from "@/shared/ui/theme";
import { placeText } from "./axis";
import { bucketsWithin, type Curve, curveReadingAt, neighbourPlace, newestReading } from "./curves";
import { dataOf, optionsOf, type Shown, wholeStretch } from "./plot";
import { Tip } from "./Tip";
import type { Axis } from "./view";
import "uplot/dist/uPlot.min.css";
import "@/shared/ui/Chart.css";

export interface OverlayProps {
  name: string;
  curves: readonly Curve[];
  axis: Axis;
  isLog: boolean;
  /** Whether the y axis holds values far from the usual ones too. */
  isFull: boolean;
  isSmoothed: boolean;
  /** Stretch that is shown; the same for all charts. */
  range: Extent;
  isZoomed: boolean;
  /** Place of the job that stands out. */
  focus: number | null;
  onFocus: (slot: number | null) => void;
  onZoom: (range: Extent | null) => void;
  onRemove: () => void;
  cursor: ChartCursor;
  format: (value: number) => string;
  height: number;
  /** What stands there without points. */
  empty: string;
}

export function Overlay(props: OverlayProps) {
  const { name, curves, height, empty, onRemove, cursor, axis, format, isSmoothed, focus } = props;
  const id = useId();
  const element = useRef<HTMLDivElement>(null);
  const [first, last] = props.range;
  const frame = useMemo(() => {
    const visible = curves.map((curve) => bucketsWithin(curve, [first, last]));
    return frameOfValues(visible, props.isFull);
  }, [curves, first, last, props.isFull]);
  const chart = usePlot(element, { ...props, id, frame });
  const isEmpty = curves.length === 0;
  return (
    <figure
      className="chart overlay"
      data-series={name}
      data-curves={curves.map(({ job }) => job.name).join(" ")}
      data-points={curves.reduce((sum, { count }) => sum + count.reduce((a, b) => a + b, 0), 0)}
    >
      <figcaption className="chart-caption">
        <h2 className="chart-title">{name}</h2>
        <Outside frame={frame} format={format} />
        <Button look="quiet" small aria-label={`Take ${name} away`} onClick={onRemove}>
          ✕
        </Button>
      </figcaption>
      <div className={isEmpty ? "chart-plot chart-bare" : "chart-plot"} style={{ height }}>
        <PlotSlider
          ref={element}
          {...{ name, curves, axis, cursor, format }}
          onBlur={() => {
            if (cursor.place?.source === id) cursor.move(null);
            props.onFocus(null);
          }}
          onKeyDown={(event) => onKey(event, id, props)}
        />
        {isEmpty && <p className="chart-empty">{empty}</p>}
        {chart && <Tip {...{ chart, id, curves, axis, cursor, format, isSmoothed, focus }} />}
      </div>
    </figure>
  );
}

interface PlotSliderProps
  extends Pick<OverlayProps, "name" | "curves" | "axis" | "cursor" | "format"> {
  ref: RefObject<HTMLDivElement | null>;
  onKeyDown: (event: KeyboardEvent) => void;
  onBlur: () => void;
}

/** The element that uPlot draws in: a slider over the axis, for the keyboard and screen readers. */
function PlotSlider({ ref, name, curves, axis, cursor, format, ...keys }: PlotSliderProps) {
  const place = useCursorPlace(cursor);
  const ends = curves.flatMap(({ x }) => [x[0] ?? 0, x.at(-1) ?? 0]);
  const at = place?.step ?? Math.max(0, ...ends);
  return (
    <div
      ref={ref}
      className="chart-canvas"
      role="slider"
      tabIndex={0}
      aria-label={`${name} of the jobs compared`}
      aria-valuemin={Math.min(at, ...ends)}
      aria-valuemax={Math.max(at, ...ends)}
      aria-valuenow={at}
      aria-valuetext={wordsOf(curves, place?.step ?? null, axis, format)}
      {...keys}
    />
  );
}

function wordsOf(
  curves: readonly Curve[],
  place: number | null,
  axis: Axis,
  format: (value: number) => string,
): string {
  const said = curves.flatMap((curve) => {
    const reading = place === null ? newestReading(curve) : curveReadingAt(curve, place);
    if (!reading) return [];
    return [`${curve.job.name} ${reading.last === null ? "not a number" : format(reading.last)}`];
  });
  if (said.length === 0) return "no points";
  return `${place === null ? "newest" : placeText(axis, place)}: ${said.join(", ")}`;
}

/** Keep a uPlot in an element, true to what is to be shown. */
function usePlot(
  element: RefObject<HTMLDivElement | null>,
  props: OverlayProps & { id: string; frame: Frame },
): uPlot | null {
  const { id, curves, axis, isLog, isSmoothed, range, frame, focus, cursor, height } = props;
  const [chart, setChart] = useState<uPlot | null>(null);
  const shown = useRef<Shown>(null as unknown as Shown);
  shown.current = {
    curves,
    focus,
    isSmoothed,
    range,
    frame,
    onZoom: props.onZoom,
    onPoint: (place, top) => {
      if (place !== null) cursor.move({ step: place, source: id });
      else if (cursor.place?.source !== id || element.current === document.activeElement) return;
      else cursor.move(null);
      // At the very top stands a cursor that another chart or the keyboard moved.
      if (place === null) props.onFocus(null);
      else if (top > 0 && chart) props.onFocus(nearestTo(chart, curves, place, top));
    },
  };
  useEffect(() => {
    const parent = element.current;
    if (!parent) return;
    const options = optionsOf({
      shown: () => shown.current,
      width: parent.clientWidth,
      height,
      axis,
      isLog,
    });
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
  }, [element, height, axis, isLog]);
  const [first, last] = range;
  useEffect(() => {
    chart?.setData(dataOf({ range: [first, last], frame }));
  }, [chart, frame, first, last]);
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
    const value = curveReadingAt(curve, place)?.smooth ?? null;
    const away = value === null ? distance : Math.abs(chart.valToPos(value, "y") - top);
    if (away < distance) [best, distance] = [curve.slot, away];
  }
  return best;
}

const ARROWS: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1 };
const CHOICES: Record<string, number> = { ArrowUp: -1, ArrowDown: 1 };
const ZOOMS: Record<string, number> = { "+": 0.5, "-": 2 };
const FAR = 10;

/**
 * Left and right move the cursor, with Shift faster; up and down choose the job that stands out;
 * + and - zoom around the cursor; Escape shows everything.
 */
function onKey(event: KeyboardEvent, id: string, props: OverlayProps): void {
  const { curves, cursor, focus, onFocus, onZoom, isZoomed } = props;
  const [arrow, choice, zoom] = [ARROWS[event.key], CHOICES[event.key], ZOOMS[event.key]];
  if (arrow) {
    const by = arrow * (event.shiftKey ? FAR : 1);
    const next = neighbourPlace(curves, cursor.place?.step ?? null, by);
    if (next !== null) putCursor(cursor, next, id);
  } else if (choice) onFocus(nextSlot(curves, focus, choice));
  else if (zoom) onZoom(zoomed(props, cursor.place?.step ?? null, zoom));
  else if (event.key === "Escape" && isZoomed) onZoom(null);
  else return;
  event.preventDefault();
}

function putCursor(cursor: ChartCursor, place: number, source: string): void {
  cursor.move({ step: place, source });
}

function nextSlot(curves: readonly Curve[], focus: number | null, by: number): number | null {
  const slots = curves.map(({ slot }) => slot);
  const at = focus === null ? (by > 0 ? -1 : slots.length) : slots.indexOf(focus);
  return slots[(at + by + slots.length) % slots.length] ?? null;
}

function zoomed({ range, axis }: OverlayProps, place: number | null, by: number): Extent {
  const [first, last] = range;
  const middle = place ?? last;
  return wholeStretch([middle - (middle - first) * by, middle + (last - middle) * by], axis);
}
