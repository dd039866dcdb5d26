// Which charts a job page draws, in which order, and where its attempts begin in them.
import type { Attempt } from "@/shared/api/types";
import { FIRST } from "@/shared/format/series";

export interface Panels {
  /** Always drawn. */
  first: string[];
  /** Drawn when asked for. */
  more: string[];
}

/** Return the names of a job's series, those that most people want first. */
export function panelsOf(names: readonly string[]): Panels {
  const first = FIRST.filter((name) => names.includes(name));
  return { first, more: names.filter((name) => !first.includes(name)) };
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

/** The marks as a chart draws them: a layout is named where it changes. */
export function labelled(marks: readonly AttemptMark[]): AttemptMark[] {
  return marks.map((mark, index) =>
    marks[index - 1]?.label === mark.label ? { ...mark, label: "" } : mark,
  );
}

/** Return the attempt that took a step of the lineage. */
export function markAt(marks: readonly AttemptMark[], step: number): AttemptMark | undefined {
  return marks.findLast((mark) => mark.step < step);
}
