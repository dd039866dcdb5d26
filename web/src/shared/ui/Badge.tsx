// Short labels: neutral ones, and states with a glyph each.
import type { ReactNode } from "react";
import type { JobState } from "@/shared/api/types";
import { cx } from "./cx";
import { StateGlyph, type StateWord } from "./StateGlyph";
import "./Badge.css";

export type Tone = "neutral" | "accent" | "ok" | "warn" | "bad";

export function Badge({
  tone = "neutral",
  children,
  title,
}: {
  tone?: Tone;
  children: ReactNode;
  title?: string;
}) {
  return (
    <span className={cx("badge", `badge-${tone}`)} title={title}>
      {children}
    </span>
  );
}

export const STATE_TONES: Record<JobState, Tone> = {
  queued: "neutral",
  starting: "accent",
  running: "accent",
  stopping: "accent",
  succeeded: "ok",
  failed: "bad",
  stopped: "warn",
  cancelled: "neutral",
};

const ATTEMPT_TONES: Partial<Record<StateWord, Tone>> = {
  placed: "neutral",
  ended: "neutral",
  spare: "neutral",
};

/** A state as glyph and word: both distinguish states without colour. */
export function StateBadge({ state, large }: { state: StateWord; large?: boolean }) {
  const tone = ATTEMPT_TONES[state] ?? STATE_TONES[state as JobState];
  return (
    <span className={cx("state", `tone-${tone}`, large && "state-large")} data-state={state}>
      <StateGlyph state={state} />
      {state}
    </span>
  );
}
