// The shape of each state, distinct without colour.
import type { ReactNode } from "react";
import type { Attempt, JobState } from "@/shared/api/types";

export type StateWord = JobState | Attempt["state"] | "spare";

const RING = <circle cx="6" cy="6" r="4.75" fill="none" stroke="currentColor" strokeWidth="1.5" />;

const HALF = (
  <>
    {RING}
    <path d="M6 1.25a4.75 4.75 0 0 1 0 9.5z" fill="currentColor" />
  </>
);

const GLYPHS: Record<StateWord, ReactNode> = {
  queued: RING,
  placed: RING,
  starting: HALF,
  stopping: <g transform="rotate(180 6 6)">{HALF}</g>,
  running: <circle className="state-pulse" cx="6" cy="6" r="4.5" fill="currentColor" />,
  succeeded: (
    <path d="M1.75 6.5 4.75 9.5 10.25 2.75" fill="none" stroke="currentColor" strokeWidth="1.9" />
  ),
  failed: <path d="m2 2 8 8m0-8-8 8" fill="none" stroke="currentColor" strokeWidth="1.9" />,
  stopped: <rect x="1.75" y="1.75" width="8.5" height="8.5" rx="1" fill="currentColor" />,
  cancelled: (
    <>
      {RING}
      <path d="m2.8 9.2 6.4-6.4" stroke="currentColor" strokeWidth="1.5" />
    </>
  ),
  ended: <circle cx="6" cy="6" r="2.5" fill="currentColor" />,
  spare: (
    <circle
      cx="6"
      cy="6"
      r="4.75"
      fill="none"
      stroke="currentColor"
      strokeWidth="1.5"
      strokeDasharray="2.5 2"
    />
  ),
};

export function StateGlyph({ state }: { state: StateWord }) {
  return (
    <svg className="state-glyph" viewBox="0 0 12 12" width="12" height="12" aria-hidden="true">
      {GLYPHS[state]}
    </svg>
  );
}
