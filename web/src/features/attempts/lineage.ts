// The lineage of a job as bars over its steps: who came from where, and what was left behind. Pure.
import type { Attempt, Job } from "@/shared/api/types";
import { isOwn } from "@/shared/job/reference";

export interface Bar {
  attempt: number;
  /** Steps that belong to the present lineage, as fractions of the whole width; null without any. */
  kept: readonly [from: number, to: number] | null;
  /** Steps that were abandoned. */
  left: readonly [from: number, to: number] | null;
  /** Where it came from: the row of that attempt, and the step as a fraction. */
  origin: { row: number; at: number } | null;
}

/** Return the number of the attempt of this job that a checkpoint came from; null without one. */
export function parentNumber(checkpointId: string | null, jobId: string): number | null {
  if (!isOwn(checkpointId, jobId)) return null;
  const match = /\.a(\d+)\.step-\d+$/.exec(checkpointId ?? "");
  return match ? Number(match[1]) : null;
}

/** Return the attempts, the one that runs with the step of its last point: no event brings that. */
export function upToDate(
  attempts: readonly Attempt[],
  job: Pick<Job, "attempt" | "progress">,
): readonly Attempt[] {
  return attempts.map((attempt) =>
    attempt.number === job.attempt && attempt.ended_at === null
      ? { ...attempt, last_step: Math.max(attempt.last_step, job.progress.step) }
      : attempt,
  );
}

/**
 * Return a bar for each attempt, in the order of `attempts`.
 *
 * An attempt of the lineage keeps its steps up to the one from which the next attempt of the
 * lineage went on; one that is not on it keeps none.
 */
export function barsOf(attempts: readonly Attempt[], jobId: string): Bar[] {
  const width = farthest(attempts) || 1;
  const rows = new Map(attempts.map((attempt, row) => [attempt.number, row]));
  const kept = keptUntil(attempts, jobId);
  return attempts.map((attempt) => {
    const [from, to] = [attempt.start_step / width, reached(attempt) / width];
    const until = kept.get(attempt.number);
    const middle = until === undefined ? from : Math.min(until / width, to);
    const row = rows.get(parentNumber(attempt.parent_checkpoint_id, jobId) ?? -1);
    return {
      attempt: attempt.number,
      kept: until === undefined ? null : [from, middle],
      left: to > middle ? [middle, to] : null,
      origin: row === undefined ? null : { row, at: from },
    };
  });
}

/** Return up to which step each attempt of the lineage belongs to it. */
function keptUntil(attempts: readonly Attempt[], jobId: string): Map<number, number> {
  const byNumber = new Map(attempts.map((attempt) => [attempt.number, attempt]));
  const kept = new Map<number, number>();
  let current = attempts.filter((one) => one.on_lineage).sort((a, b) => b.number - a.number)[0];
  let until = Number.POSITIVE_INFINITY;
  while (current && !kept.has(current.number)) {
    kept.set(current.number, until);
    until = current.start_step;
    current = byNumber.get(parentNumber(current.parent_checkpoint_id, jobId) ?? -1);
  }
  return kept;
}

/** The greatest step that any of them reached. */
export function farthest(attempts: readonly Attempt[]): number {
  return Math.max(0, ...attempts.map(reached));
}

function reached(attempt: Attempt): number {
  return Math.max(attempt.last_step, attempt.start_step);
}
