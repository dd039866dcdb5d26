// The lineage of a job as bars over its steps: parents, kept and abandoned steps. Pure.
import type { Attempt, Job } from "@/shared/api/types";
import { isOwn } from "@/shared/job/reference";

export interface Bar {
  attempt: number;
  /** Steps that belong to the present lineage, as fractions of the whole width; null without any. */
  kept: readonly [from: number, to: number] | null;
  /** Abandoned steps, as fractions of the whole width; null without any. */
  left: readonly [from: number, to: number] | null;
  /** The row of the parent attempt, and the step of the parent checkpoint as a fraction. */
  origin: { row: number; at: number } | null;
}

/** Return the number of this job's attempt that wrote a checkpoint; null without one. */
export function parentNumber(checkpointId: string | null, jobId: string): number | null {
  if (!isOwn(checkpointId, jobId)) return null;
  const match = /\.a(\d+)\.step-\d+$/.exec(checkpointId ?? "");
  return match ? Number(match[1]) : null;
}

/** Return the attempts; the running one gets the job's step, because no event contains its own. */
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
 * An attempt of the lineage keeps its steps up to the start of the next attempt of the lineage; an
 * attempt outside the lineage keeps none.
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

/** Return the last step on the lineage by number of attempt; other attempts are omitted. */
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

/** Return the greatest step of all attempts. */
export function farthest(attempts: readonly Attempt[]): number {
  return Math.max(0, ...attempts.map(reached));
}

function reached(attempt: Attempt): number {
  return Math.max(attempt.last_step, attempt.start_step);
}
