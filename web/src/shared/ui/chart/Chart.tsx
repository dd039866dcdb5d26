// A chart of one series: the curve of one job with its branches, or curves of several jobs.
import { type KeyboardEvent, type ReactNode, type RefObject, useId, useMemo, useRef } from "react";
import { plural } from "@/shared/format/numbers";
import { cx } from "@/shared/ui/cx";
import { type Axis, placeText } from "./axis";
import { ChartTip } from "./ChartTip";
import { type ChartCursor, useCursorPlace } from "./cursor";
import {
  bucketsWithin,
  type Curve,
  type Extent,
  newestReading,
  pointTotal,
  type Reading,
  readingAt,
  stretchOf,
} from "./curve";
import { frameOfValues } from "./frame";
import { onChartKey } from "./keys";
import { Outside } from "./Outside";
import type { StepMark } from "./plot/drawMarks";
import { usePlot } from "./plot/usePlot";
import type { ValueScale } from "./plot/valueAxis";
import "uplot/dist/uPlot.min.css";
import "./Chart.css";

export interface ChartProps {
  title: string;
  /** Name of the plot for screen readers, such as `train/loss over steps`. */
  label: string;
  curves: readonly Curve[];
  axis: Axis;
  scale: ValueScale;
  /** The chosen stretch of the axis; null for all of it. */
  range: Extent | null;
  /** The whole axis, if several charts share it; else the extent of the curves. */
  whole?: Extent;
  /** Called with the chosen stretch; with null for the whole axis. */
  onZoom: (range: Extent | null) => void;
  /** Shared by charts with a common cursor. */
  cursor: ChartCursor;
  format: (value: number) => string;
  /** First line of the tooltip, for a place on the axis. */
  describe: (place: number) => string;
  /** Whether the y axis includes outliers. */
  isFull: boolean;
  marks?: readonly StepMark[];
  /** Place of the highlighted job. */
  focus?: number | null;
  onFocus?: (slot: number | null) => void;
  /** Content at the right of the caption. */
  caption: ReactNode;
  height?: number;
  /** Text shown without points. */
  empty: string;
}

const NO_MARKS: readonly StepMark[] = [];

export function Chart(props: ChartProps) {
  const { title, curves, format, caption, empty, isFull, cursor, onFocus } = props;
  const { height = 176, marks = NO_MARKS, focus = null } = props;
  const id = useId();
  const element = useRef<HTMLDivElement>(null);
  const main = curves.filter(({ isBranch }) => !isBranch);
  const [first, last] = stretchOf(curves, props.range ?? props.whole ?? null);
  const stretch: Extent = [first, last];
  const frame = useMemo(() => {
    const visible = curves.map((curve) => bucketsWithin(curve, [first, last]));
    return frameOfValues(visible, isFull);
  }, [curves, first, last, isFull]);
  const chart = usePlot(element, { ...props, id, stretch, frame, height, marks, focus });
  return (
    <figure
      className="chart panel"
      data-series={title}
      data-curves={main.map(({ label }) => label).join(" ")}
      data-points={main.reduce((sum, curve) => sum + pointTotal(curve), 0)}
      data-last-step={main[0]?.steps.at(-1) ?? ""}
    >
      <figcaption className="chart-caption">
        <h2 className="chart-title ellipsis">{title}</h2>
        <Outside frame={frame} format={format} />
        {caption}
      </figcaption>
      <div className={cx("chart-plot", curves.length === 0 && "chart-bare")} style={{ height }}>
        <PlotSlider
          {...props}
          ref={element}
          curves={main}
          onKeyDown={(event) => onChartKey(event, { ...props, id, curves: main, stretch, focus })}
          onBlur={() => {
            if (cursor.place?.source === id) cursor.move(null);
            onFocus?.(null);
          }}
        />
        {curves.length === 0 && <p className="chart-empty">{empty}</p>}
        {chart && <ChartTip {...props} chart={chart} id={id} focus={focus} stretch={stretch} />}
      </div>
    </figure>
  );
}

interface PlotSliderProps
  extends Pick<ChartProps, "label" | "curves" | "axis" | "cursor" | "format"> {
  ref: RefObject<HTMLDivElement | null>;
  onKeyDown: (event: KeyboardEvent) => void;
  onBlur: () => void;
}

/** The element that uPlot draws in: a slider over the axis, for the keyboard and screen readers. */
function PlotSlider(props: PlotSliderProps) {
  const { ref, label, curves, axis, cursor, format, onKeyDown, onBlur } = props;
  const place = useCursorPlace(cursor)?.step ?? null;
  const ends = curves.flatMap(({ x }) => [x[0] ?? 0, x.at(-1) ?? 0]);
  const found = curves.flatMap((curve) => {
    const reading = place === null ? newestReading(curve) : readingAt(curve, place);
    return reading ? [{ curve, reading }] : [];
  });
  // With one curve the value is the bucket's own place: the pointer may lie between two buckets.
  const only = curves.length === 1 ? found[0]?.reading : undefined;
  const at = only?.x ?? place ?? Math.max(0, ...ends);
  const where = place === null && curves.length > 1 ? "newest" : placeText(axis, at);
  const values = found.map(({ curve, reading }) => valueText(curve, reading, format));
  return (
    <div
      ref={ref}
      className="chart-canvas"
      role="slider"
      tabIndex={0}
      aria-label={label}
      aria-valuemin={Math.min(at, ...ends)}
      aria-valuemax={Math.max(at, ...ends)}
      aria-valuenow={at}
      aria-valuetext={values.length > 0 ? `${where}: ${values.join(", ")}` : "no points"}
      onKeyDown={onKeyDown}
      onBlur={onBlur}
    />
  );
}

function valueText(
  { label }: Curve,
  { last, nonFinite }: Reading,
  format: (value: number) => string,
): string {
  const value = last === null ? "not a number" : format(last);
  const strange = nonFinite > 0 ? `, ${plural(nonFinite, "point")} NaN or infinite` : "";
  return `${label === null ? "" : `${label} `}${value}${strange}`;
}
