// The value of a chart at the cursor, or the newest value without a cursor.
import { count } from "@/shared/format/numbers";
import { type ChartCursor, useCursorPlace } from "@/shared/ui/chart/cursor";
import { type Curve, newestReading, nonFiniteTotal, readingAt } from "@/shared/ui/chart/curve";

interface ReadoutProps {
  curve: Curve;
  cursor: ChartCursor;
  format: (value: number) => string;
}

export function Readout({ curve, cursor, format }: ReadoutProps) {
  const place = useCursorPlace(cursor);
  const shown = place ? readingAt(curve, place.step) : newestReading(curve);
  const strange = nonFiniteTotal(curve);
  return (
    <span className="chart-now">
      {strange > 0 && (
        <span className="small tone-bad" title="Points that are NaN or infinite">
          {count(strange)} NaN
        </span>
      )}
      <strong>{shown && (shown.last === null ? "NaN" : format(shown.last))}</strong>
    </span>
  );
}
