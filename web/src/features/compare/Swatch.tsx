// A piece of a job's line: its colour and its dashes, as the charts draw them.
import { DASHES } from "./draw";

export function Swatch({ slot }: { slot: number }) {
  return (
    <svg className="swatch" viewBox="0 0 28 8" width="28" height="8" aria-hidden="true">
      <line
        x1="0"
        y1="4"
        x2="28"
        y2="4"
        stroke={`var(--job-${slot + 1})`}
        strokeWidth="2.5"
        strokeDasharray={DASHES[slot]?.join(" ")}
      />
    </svg>
  );
}
