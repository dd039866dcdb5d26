// The tooltip of a chart: the values of its curves at the cursor.
import type { CSSProperties } from "react";
import type uPlot from "uplot";
import { count, plural } from "@/shared/format/numbers";
import { cx } from "@/shared/ui/cx";
import { type ChartCursor, useCursorPlace } from "./cursor";
import { type Curve, type Extent, type Reading, readingAt } from "./curve";
import { Swatch } from "./Swatch";

const MAX_BRANCHES = 4;

interface ChartTipProps {
  chart: uPlot;
  id: string;
  curves: readonly Curve[];
  cursor: ChartCursor;
  format: (value: number) => string;
  describe: (place: number) => string;
  focus: number | null;
  /** Visible stretch of the axis. */
  stretch: Extent;
}

/** The tooltip at the crosshair, in the chart with the pointer or the keyboard focus. */
export function ChartTip(props: ChartTipProps) {
  const { chart, id, curves, cursor, format, describe, focus, stretch } = props;
  const place = useCursorPlace(cursor);
  if (place?.source !== id) return null;
  const rows = curves.flatMap((curve) => {
    const reading = readingAt(curve, place.step);
    return reading ? [{ curve, reading }] : [];
  });
  if (rows.length === 0) return null;
  const style = placed(chart, (place.step - stretch[0]) / (stretch[1] - stretch[0]), rows.length);
  const [main, branches] = [
    rows.filter(({ curve }) => !curve.isBranch),
    rows.filter(({ curve }) => curve.isBranch),
  ];
  const isOnly = curves.filter(({ isBranch }) => !isBranch).length === 1;
  return (
    <div className="chart-tip small" style={style} aria-live="polite">
      <div className="chart-tip-place">{describe(place.step)}</div>
      {main.map(({ curve, reading }) => (
        <Row
          key={curve.slot}
          {...{ curve, reading, format }}
          isChosen={focus === curve.slot}
          isDetailed={isOnly || focus === curve.slot}
        />
      ))}
      {branches.slice(0, MAX_BRANCHES).map(({ curve, reading }) => (
        <div key={curve.label} className="chart-tip-branch">
          {curve.label}: {textOf(reading, format)}
        </div>
      ))}
      {branches.length > MAX_BRANCHES && (
        <div className="chart-tip-branch">and {branches.length - MAX_BRANCHES} more branches</div>
      )}
    </div>
  );
}

const LINE = 17;

/**
 * Place the tooltip above the plot, or below it at the top of the window: within, it would cover the curves.
 *
 * The place follows from the share of the stretch: the chart may not have drawn a new stretch yet.
 */
function placed(chart: uPlot, share: number, rows: number): CSSProperties {
  const left = chart.over.offsetLeft + share * chart.over.clientWidth;
  const side =
    left > chart.width / 2 ? { right: Math.max(chart.width - left + 10, 0) } : { left: left + 10 };
  const hasRoom = chart.root.getBoundingClientRect().top > (rows + 2) * LINE;
  return hasRoom ? { ...side, top: "auto", bottom: "100%" } : { ...side, top: "100%" };
}

interface RowProps {
  curve: Curve;
  reading: Reading;
  format: (value: number) => string;
  isChosen: boolean;
  /** Whether the extremes of the bucket are shown too. */
  isDetailed: boolean;
}

function Row({ curve, reading, format, isChosen, isDetailed }: RowProps) {
  const { min, max, nonFinite } = reading;
  const hasExtremes = isDetailed && reading.count > 1 && min !== null && max !== null;
  return (
    <div
      className={cx(
        curve.label === null ? "chart-tip-only" : "chart-tip-row",
        isChosen && "chart-tip-chosen",
      )}
    >
      {curve.label !== null && (
        <>
          <Swatch slot={curve.slot} />
          <span className="chart-tip-name ellipsis">{curve.label}</span>
        </>
      )}
      <span className="chart-tip-value">{textOf(reading, format)}</span>
      {hasExtremes && (
        <span className="chart-tip-more">
          {format(min)} to {format(max)}, {plural(reading.count, "point")}
          {curve.label !== null && ` up to step ${count(reading.step)}`}
        </span>
      )}
      {nonFinite > 0 && (
        <span className="chart-tip-more tone-bad">
          {plural(nonFinite, "point")} NaN or infinite
        </span>
      )}
    </div>
  );
}

function textOf({ smooth }: Reading, format: (value: number) => string): string {
  return smooth === null ? "NaN" : format(smooth);
}
