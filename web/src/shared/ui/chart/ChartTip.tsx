// What a chart says of the steps under the cursor.
import type uPlot from "uplot";
import type { MetricLine } from "@/shared/api/types";
import { count, plural } from "@/shared/format/numbers";
import { type ChartCursor, useCursorPlace } from "./cursor";
import { branchReadingAt, courseOf, type Reading, readingAt } from "./lines";

const MOST_BRANCHES = 4;

interface ChartTipProps {
  chart: uPlot;
  id: string;
  lines: readonly MetricLine[];
  cursor: ChartCursor;
  format: (value: number) => string;
  describe?: (step: number) => string | null;
}

/** Beside the crosshair, in the chart in which the pointer or the keyboard is. */
export function ChartTip({ chart, id, lines, cursor, format, describe }: ChartTipProps) {
  const place = useCursorPlace(cursor);
  if (place?.source !== id) return null;
  const course = courseOf(lines);
  const main = course ? readingAt(course, place.step) : null;
  const branches = lines
    .filter((line) => line !== course)
    .map((line) => ({ branch: line.branch, found: branchReadingAt(line, place.step) }))
    .filter(({ found }) => found !== null);
  const left = chart.over.offsetLeft + chart.valToPos(place.step, "x");
  const isRight = left > chart.width / 2;
  const side = isRight ? { right: chart.width - left + 10 } : { left: left + 10 };
  return (
    <div className="chart-tip" style={side} aria-live="polite">
      {main && (
        <>
          <div className="chart-tip-step">
            {stepsOf(main)}
            {describe?.(main.lastStep) && <span> · {describe(main.lastStep)}</span>}
          </div>
          <Values reading={main} format={format} />
        </>
      )}
      {branches.slice(0, MOST_BRANCHES).map(({ branch, found }) => (
        <div key={branch} className="chart-tip-branch">
          {branch.replace("-", " ")}, abandoned: {found && textOf(found, format)}
        </div>
      ))}
      {branches.length > MOST_BRANCHES && (
        <div className="chart-tip-branch">and {branches.length - MOST_BRANCHES} more branches</div>
      )}
    </div>
  );
}

function Values({ reading, format }: { reading: Reading; format: (value: number) => string }) {
  const { min, max, nonFinite } = reading;
  return (
    <>
      <div className="chart-tip-value">{textOf(reading, format)}</div>
      {reading.count > 1 && min !== null && max !== null && (
        <div>
          {format(min)} to {format(max)}, {plural(reading.count, "point")}
        </div>
      )}
      {nonFinite > 0 && (
        <div className="chart-tip-strange">{plural(nonFinite, "point")} NaN or infinite</div>
      )}
    </>
  );
}

function textOf({ last }: Reading, format: (value: number) => string): string {
  return last === null ? "NaN" : format(last);
}

function stepsOf({ firstStep, lastStep }: Reading): string {
  return firstStep === lastStep
    ? `step ${count(lastStep)}`
    : `steps ${count(firstStep)}–${count(lastStep)}`;
}
