// A chart of lines over time: values from zero, gaps at missing samples.

import { useId } from "react";
import { fixed } from "@/shared/format/numbers";
import { cx } from "@/shared/ui/cx";
import { type Line, stretches } from "./history";

const WIDTH = 320;
export const COLOURS = 7;

interface LineChartProps {
  /** Title, also for screen readers. */
  title: string;
  lines: readonly Line[];
  /** Times at the left and right end, in seconds since 1970. */
  from: number;
  to: number;
  /** Length of the period of each point, in seconds. */
  seconds: number;
  /** Value at the top; by default the highest of all points. */
  top?: number;
  height: number;
  isFilled?: boolean;
}

export function LineChart(props: LineChartProps) {
  const { title, lines, from, to, seconds, height, isFilled } = props;
  const id = useId();
  const highest = Math.max(0, ...lines.flatMap(({ points }) => points.map(([, value]) => value)));
  const top = props.top ?? (highest || 1);
  const x = (at: number) => ((at - from) / (to - from)) * WIDTH;
  const y = (value: number) => height - 1 - (value / top) * (height - 2);
  return (
    <svg
      className="line-chart"
      viewBox={`0 0 ${WIDTH} ${height}`}
      height={height}
      preserveAspectRatio="none"
      role="img"
      aria-labelledby={id}
    >
      <title id={id}>{title}</title>
      {lines.flatMap(({ label, place, points }) =>
        stretches(points, seconds).map((stretch) => {
          const [first, last] = [stretch[0], stretch.at(-1)];
          if (!first || !last) return null;
          const path = stretch.map(([at, value]) => `${fixed(x(at), 1)},${fixed(y(value), 1)}`);
          // A single point would have no length.
          const drawn = path.length > 1 ? path.join("L") : `${path[0]}h2`;
          const colours = cx(`line-${(place % COLOURS) + 1}`, place >= COLOURS && "line-again");
          return (
            <g key={`${label} ${first[0]}`} className={colours}>
              {isFilled && path.length > 1 && (
                <path
                  className="line-area"
                  d={`M${x(first[0])},${height}L${drawn}L${x(last[0])},${height}Z`}
                />
              )}
              <path className="line" d={`M${drawn}`} />
            </g>
          );
        }),
      )}
    </svg>
  );
}
