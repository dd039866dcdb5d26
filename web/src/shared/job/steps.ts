// Steps as text: a program need not report any.
import { count, NONE } from "@/shared/format/numbers";

/** The step that a job has reached; a program without a number of steps may have reported none. */
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
  /** Null of a program. */
  micro_batch_size: number | null;
}

/** The step that an attempt has reached. */
export function lastStep(attempt: Steps): string {
  const last = Math.max(attempt.last_step, attempt.start_step);
  return last === 0 && attempt.micro_batch_size === null ? NONE : count(last);
}
