// A piece of a job's curve: its colour and its dashes, as the charts draw them.
import { lookOf } from "./looks";

export function Swatch({ slot }: { slot: number }) {
  const { colour, dash } = lookOf(slot);
  return (
    <svg className="swatch" viewBox="0 0 28 8" width="28" height="8" aria-hidden="true">
      <line
        x1="0"
        y1="4"
        x2="28"
        y2="4"
        stroke={`var(--${colour})`}
        strokeWidth="2.5"
        strokeDasharray={dash.join(" ") || undefined}
      />
    </svg>
  );
}
