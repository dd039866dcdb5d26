// The lineage next to the rows of the attempts: a bar of steps for each, joined to its parent.
import { cx } from "@/shared/ui/cx";
import type { Bar } from "./lineage";

const WIDTH = 264;
const EDGE = 16;

interface LineagePictureProps {
  bars: readonly Bar[];
  rowHeight: number;
  selected: number;
}

export function LineagePicture({ bars, rowHeight, selected }: LineagePictureProps) {
  const x = (share: number) => EDGE + share * (WIDTH - 2 * EDGE);
  const middle = (row: number) => row * rowHeight + rowHeight / 2;
  return (
    <svg
      className="lineage"
      width={WIDTH}
      height={bars.length * rowHeight}
      role="img"
      aria-label="Steps of each attempt, and its parent attempt"
    >
      {bars.map(({ attempt }, row) => (
        <g key={attempt}>
          {attempt === selected && (
            <rect className="lineage-row" y={row * rowHeight} width={WIDTH} height={rowHeight} />
          )}
          {row > 0 && <path className="lineage-rule" d={`M0 ${row * rowHeight - 0.5}H${WIDTH}`} />}
        </g>
      ))}
      {bars.map(({ attempt, origin }, row) =>
        origin ? (
          <path
            key={attempt}
            className="lineage-origin"
            d={`M${x(origin.at)} ${middle(origin.row)}V${middle(row)}`}
          />
        ) : null,
      )}
      {bars.map(({ attempt, kept, left, origin }, row) => (
        <g key={attempt} className={cx("lineage-bar", attempt === selected && "lineage-selected")}>
          {left && <path className="lineage-left" d={line(x, left, middle(row))} />}
          {kept && <path className="lineage-kept" d={line(x, kept, middle(row))} />}
          <circle cx={x(origin?.at ?? (kept ?? left)?.[0] ?? 0)} cy={middle(row)} r="3" />
        </g>
      ))}
    </svg>
  );
}

function line(
  x: (share: number) => number,
  [from, to]: readonly [number, number],
  y: number,
): string {
  return `M${x(from)} ${y}H${Math.max(x(to), x(from) + 1)}`;
}
