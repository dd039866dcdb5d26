// Which charts a job page draws, in which order, and where its attempts begin in them.
import type { Attempt } from "@/shared/api/types";
import { FIRST } from "@/shared/format/series";

export interface Panels {
  /** Always drawn. */
  first: string[];
  /** Drawn when asked for. */
  more: string[];
}

/** Charts that are drawn at once of a job whose script names its series. */
export const DRAWN = 12;

/**
 * Return the names of a job's series, those that most people want first.
 *
 * What a script logs by names of its own is what it logs for: it follows them at once.
 */
export function panelsOf(names: readonly string[], isOwnScript: boolean): Panels {
  const first = FIRST.filter((name) => names.includes(name));
  const others = names.filter((name) => !first.includes(name));
  const room = isOwnScript ? Math.max(DRAWN - first.length, 0) : 0;
  return { first: [...first, ...others.slice(0, room)], more: others.slice(room) };
}

/** Where an attempt begins on the lineage. */
export interface AttemptMark {
  step: number;
  attempt: number;
  label: string;
}

/**
 * Return where the attempts of the lineage begin, in order of their steps.
 *
 * Of attempts that begin at one step the newest counts: the others left nothing on the lineage.
 */
export function marksOf(attempts: readonly Attempt[]): AttemptMark[] {
  const byStep = new Map<number, AttemptMark>();
  const oldestFirst = attempts.filter((a) => a.on_lineage).sort((a, b) => a.number - b.number);
  for (const { start_step, number, layout_name } of oldestFirst) {
    byStep.set(start_step, { step: start_step, attempt: number, label: layout_name });
  }
  return [...byStep.values()].sort((a, b) => a.step - b.step);
}

/** The marks as a chart draws them: a layout is named where it changes, and the only one nowhere. */
export function labelled(marks: readonly AttemptMark[]): AttemptMark[] {
  const isOne = new Set(marks.map(({ label }) => label)).size === 1;
  return marks.map((mark, index) =>
    isOne || marks[index - 1]?.label === mark.label ? { ...mark, label: "" } : mark,
  );
}

/** Return the attempt that took a step of the lineage. */
export function markAt(marks: readonly AttemptMark[], step: number): AttemptMark | undefined {
  return marks.findLast((mark) => mark.step < step);
}
