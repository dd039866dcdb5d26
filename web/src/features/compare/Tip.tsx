// What the jobs say at the place under the cursor, beside the crosshair.
import type uPlot from "uplot";
import { plural } from "@/shared/format/numbers";
import { type ChartCursor, useCursorPlace } from "@/shared/ui/chart/cursor";
import { cx } from "@/shared/ui/cx";
import { placeText } from "./axis";
import { type Curve, type CurveReading, curveReadingAt } from "./curves";
import { Swatch } from "./Swatch";
import type { Axis } from "./view";

interface TipProps {
  chart: uPlot;
  id: string;
  curves: readonly Curve[];
  axis: Axis;
  cursor: ChartCursor;
  format: (value: number) => string;
  isSmoothed: boolean;
  focus: number | null;
}

export function Tip({ chart, id, curves, axis, cursor, format, isSmoothed, focus }: TipProps) {
  const place = useCursorPlace(cursor);
  if (place?.source !== id) return null;
  const rows = curves.flatMap((curve) => {
    const reading = curveReadingAt(curve, place.step);
    return reading ? [{ curve, reading }] : [];
  });
  if (rows.length === 0) return null;
  const left = chart.over.offsetLeft + chart.valToPos(place.step, "x");
  const side = left > chart.width / 2 ? { right: chart.width - left + 10 } : { left: left + 10 };
  const isOne = curves.length === 1;
  return (
    <div className="chart-tip overlay-tip" style={side} aria-live="polite">
      <div className="chart-tip-step">
        {placeText(axis, place.step)}
        {isSmoothed && ", smoothed"}
      </div>
      {rows.map(({ curve, reading }) => (
        <div
          key={curve.slot}
          className={cx("overlay-row", focus === curve.slot && "overlay-chosen")}
        >
          <Swatch slot={curve.slot} />
          <span className="overlay-name">{curve.job.name}</span>
          <span className="overlay-value">{textOf(reading, format)}</span>
          {(isOne || focus === curve.slot) && <More reading={reading} format={format} />}
          {reading.nonFinite > 0 && (
            <span className="chart-tip-strange overlay-more">
              {plural(reading.nonFinite, "point")} NaN or infinite
            </span>
          )}
        </div>
      ))}
    </div>
  );
}

/** The extremes of the bucket. */
function More({ reading, format }: { reading: CurveReading; format: (value: number) => string }) {
  const { min, max, count, step } = reading;
  if (count < 2 || min === null || max === null) return null;
  return (
    <span className="overlay-more">
      {format(min)} to {format(max)}, {plural(count, "point")} up to step{" "}
      {step.toLocaleString("en-US")}
    </span>
  );
}

function textOf({ smooth }: CurveReading, format: (value: number) => string): string {
  return smooth === null ? "NaN" : format(smooth);
}
