// Which charts a job page draws, in which order, with marks at the starts of attempts.
import type { Attempt } from "@/shared/api/types";
import { FIRST } from "@/shared/format/series";

export interface Panels {
  /** Always drawn. */
  first: string[];
  /** Drawn on demand. */
  more: string[];
}

/** Most charts drawn without a click, for a job with its own series. */
export const DRAWN = 12;

/**
 * Return the names of a job's series, the most used first.
 *
 * Series that a script names itself are the purpose of its logging: they are drawn without a click too.
 */
export function panelsOf(names: readonly string[], isOwnScript: boolean): Panels {
  const first = FIRST.filter((name) => names.includes(name));
  const others = names.filter((name) => !first.includes(name));
  const room = isOwnScript ? Math.max(DRAWN - first.length, 0) : 0;
  return { first: [...first, ...others.slice(0, room)], more: others.slice(room) };
}

/** The start of an attempt on the lineage. */
export interface AttemptMark {
  step: number;
  attempt: number;
  label: string;
}

/**
 * Return the starts of the lineage's attempts, in order of their steps.
 *
 * Only the newest of attempts with the same first step counts: the others have no step on the lineage.
 */
export function marksOf(attempts: readonly Attempt[]): AttemptMark[] {
  const byStep = new Map<number, AttemptMark>();
  const oldestFirst = attempts.filter((a) => a.on_lineage).sort((a, b) => a.number - b.number);
  for (const { start_step, number, layout_name } of oldestFirst) {
    byStep.set(start_step, { step: start_step, attempt: number, label: layout_name });
  }
  return [...byStep.values()].sort((a, b) => a.step - b.step);
}

/** Return the marks with a layout only where it changes; a single layout is not named. */
export function labelled(marks: readonly AttemptMark[]): AttemptMark[] {
  const isOne = new Set(marks.map(({ label }) => label)).size === 1;
  return marks.map((mark, index) =>
    isOne || marks[index - 1]?.label === mark.label ? { ...mark, label: "" } : mark,
  );
}

/** Return the attempt that trained a step of the lineage. */
export function markAt(marks: readonly AttemptMark[], step: number): AttemptMark | undefined {
  return marks.findLast((mark) => mark.step < step);
}
