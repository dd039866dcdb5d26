// Steps as text; a program may report none.
import { count, NONE } from "@/shared/format/numbers";

/** The job's latest step; a program without a number of steps may have reported none. */
export function reachedStep(
  progress: { step: number; steps: number | null },
  state: string,
): string {
  const isUnknown = progress.step === 0 && (progress.steps === null || state === "succeeded");
  return isUnknown ? NONE : count(progress.step);
}

interface Steps {
  start_step: number;
  last_step: number;
  /** Null for a program. */
  micro_batch_size: number | null;
}

/** The attempt's latest step. */
export function lastStep(attempt: Steps): string {
  const last = Math.max(attempt.last_step, attempt.start_step);
  return last === 0 && attempt.micro_batch_size === null ? NONE : count(last);
}
