// A live chart of one series over steps: line, band of extremes, branches, NaN, attempts.
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
import type { MetricLine } from "@/shared/api/types";
import { count, plural } from "../format/numbers";
import { ChartTip } from "./chart/ChartTip";
import { type ChartCursor, useCursorPlace } from "./chart/cursor";
import type { StepMark } from "./chart/draw";
import type { Frame } from "./chart/frame";
import {
  columnsOf,
  courseOf,
  type Extent,
  lastReading,
  neighbourStep,
  nonFiniteTotal,
  type Reading,
  readingAt,
} from "./chart/lines";
import { Outside } from "./chart/Outside";
import { frameOfLines, optionsOf, type Shown, stepRange, type ValueScale } from "./chart/options";
import { cx } from "./cx";
import { watchTheme } from "./theme";
import "uplot/dist/uPlot.min.css";
import "./Chart.css";

export interface ChartProps {
  title: string;
  /** Lines of one series: the lineage, and abandoned branches. */
  lines: readonly MetricLine[];
  marks: readonly StepMark[];
  /** Steps that are shown; all of them when null. */
  range: Extent | null;
  /** Called with the steps that a person chose; with null for all of them. */
  onZoom: (range: Extent | null) => void;
  /** Shared by the charts whose cursors move together. */
  cursor: ChartCursor;
  format: (value: number) => string;
  /** What is worth a line in the tooltip beside the values, such as the attempt. */
  describe?: (step: number) => string | null;
  scale?: ValueScale;
  /** Whether the y axis holds values far from the usual ones too. */
  isFull?: boolean;
  height?: number;
  /** What stands there without points. */
  empty?: string;
}

export function Chart({ title, lines, scale = "linear", height = 176, ...rest }: ChartProps) {
  const { cursor, format, describe, range, isFull = false, empty = "No points" } = rest;
  const id = useId();
  const course = courseOf(lines);
  const isEmpty = lines.length === 0;
  const total = course?.count.reduce((sum, some) => sum + some, 0) ?? 0;
  const plot = useRef<HTMLDivElement>(null);
  const frame = useMemo(() => frameOfLines({ lines, range }, isFull), [lines, range, isFull]);
  const chart = usePlot(plot, { id, lines, scale, height, frame, ...rest });
  return (
    <figure
      className="chart"
      data-series={title}
      data-points={total}
      data-last-step={course?.steps.at(-1) ?? ""}
    >
      <figcaption className="chart-caption">
        <h2 className="chart-title">{title}</h2>
        <Outside frame={frame} format={format} />
        {course && <Readout line={course} cursor={cursor} format={format} />}
      </figcaption>
      <div className={cx("chart-plot", isEmpty && "chart-bare")} style={{ height }}>
        <PlotSlider
          ref={plot}
          id={id}
          title={title}
          line={course}
          {...rest}
          onKeyDown={(event) => onKey(event, { id, lines, ...rest })}
        />
        {isEmpty && <p className="chart-empty">{empty}</p>}
        {chart && (
          <ChartTip
            chart={chart}
            id={id}
            lines={lines}
            cursor={cursor}
            format={format}
            describe={describe}
          />
        )}
      </div>
    </figure>
  );
}

/** The value at the cursor, else the newest one. */
function Readout({
  line,
  cursor,
  format,
}: {
  line: MetricLine;
  cursor: ChartCursor;
  format: (value: number) => string;
}) {
  const place = useCursorPlace(cursor);
  const shown = place ? readingAt(line, place.step) : lastReading(line);
  const strange = nonFiniteTotal(line);
  return (
    <span className="chart-now">
      {strange > 0 && (
        <span className="chart-strange" title="Points that are NaN or infinite">
          {count(strange)} NaN
        </span>
      )}
      <strong>{shown && (shown.last === null ? "NaN" : format(shown.last))}</strong>
    </span>
  );
}

interface PlotSliderProps extends Pick<ChartProps, "title" | "cursor" | "format"> {
  ref: RefObject<HTMLDivElement | null>;
  id: string;
  line: MetricLine | undefined;
  onKeyDown: (event: KeyboardEvent) => void;
}

/** The element that uPlot draws in: a slider over the steps, for the keyboard and screen readers. */
function PlotSlider({ ref, id, title, line, cursor, format, onKeyDown }: PlotSliderProps) {
  const place = useCursorPlace(cursor);
  const found = line && (place ? readingAt(line, place.step) : lastReading(line));
  return (
    <div
      ref={ref}
      className="chart-canvas"
      role="slider"
      tabIndex={0}
      aria-label={`${title} over steps`}
      aria-valuemin={line?.steps[0] ?? 0}
      aria-valuemax={line?.steps.at(-1) ?? 0}
      aria-valuenow={found?.lastStep ?? 0}
      aria-valuetext={found ? readingText(found, format) : "no points"}
      onKeyDown={onKeyDown}
      onBlur={() => cursor.place?.source === id && cursor.move(null)}
    />
  );
}

function readingText(reading: Reading, format: (value: number) => string): string {
  const value = reading.last === null ? "not a number" : format(reading.last);
  const strange = reading.nonFinite > 0 ? `, ${plural(reading.nonFinite, "point")} not finite` : "";
  return `step ${count(reading.lastStep)}: ${value}${strange}`;
}

type PlotSetup = Omit<ChartProps, "title" | "format" | "describe"> & {
  id: string;
  height: number;
  frame: Frame;
};

/** Keep a uPlot in an element, true to what is to be shown. */
function usePlot(element: RefObject<HTMLDivElement | null>, setup: PlotSetup): uPlot | null {
  const { id, lines, marks, range, onZoom, cursor, scale = "linear", height, frame } = setup;
  const [chart, setChart] = useState<uPlot | null>(null);
  const present: Shown = {
    lines,
    marks,
    range,
    frame,
    onZoom,
    onMove: (step) => cursor.move(step === null ? null : { step, source: id }),
  };
  const shown = useRef(present);
  shown.current = present;
  useEffect(() => {
    const parent = element.current;
    if (!parent) return;
    const { clientWidth: width } = parent;
    const options = optionsOf({ shown: () => shown.current, width, height, scale });
    const made = new uPlot(options, columnsOf(courseOf(shown.current.lines)), parent);
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
  }, [element, height, scale]);
  const columns = useMemo(() => columnsOf(courseOf(lines)), [lines]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: marks and axes are drawn anew too
  useEffect(() => {
    chart?.setData(columns);
  }, [chart, columns, marks, frame, range?.[0], range?.[1]]);
  useEffect(() => {
    if (!chart) return;
    const follow = () => {
      const place = cursor.place;
      const left = place ? chart.valToPos(place.step, "x") : -10;
      chart.setCursor({ left, top: place ? 0 : -10 }, false);
    };
    return cursor.watch(follow);
  }, [chart, cursor]);
  return chart;
}

const ARROWS: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1 };
const ZOOMS: Record<string, number> = { "+": 0.5, "-": 2 };
const FAR = 10;

type KeySetup = Pick<ChartProps, "lines" | "range" | "onZoom" | "cursor"> & { id: string };

/** Arrows move the cursor, with Shift faster; + and - zoom around it; Escape shows everything. */
function onKey(event: KeyboardEvent, setup: KeySetup): void {
  const { lines, range, onZoom, cursor } = setup;
  const step = cursor.place?.step ?? null;
  const [arrow, zoom] = [ARROWS[event.key], ZOOMS[event.key]];
  if (arrow) walk(setup, step, arrow * (event.shiftKey ? FAR : 1));
  else if (zoom) onZoom(zoomed(stepRange({ lines, range }), step, zoom));
  else if (event.key === "Escape" && range) onZoom(null);
  else return;
  event.preventDefault();
}

function walk({ id, lines, cursor }: KeySetup, step: number | null, by: number): void {
  const course = courseOf(lines);
  const next = course ? neighbourStep(course, step, by) : null;
  if (next !== null) cursor.move({ step: next, source: id });
}

function zoomed([first, last]: Extent, step: number | null, by: number): Extent {
  const middle = step ?? last;
  const from = Math.max(0, Math.floor(middle - (middle - first) * by));
  const to = Math.ceil(middle + (last - middle) * by);
  return [from, Math.max(to, from + 2)];
}
