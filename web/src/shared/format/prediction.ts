// Words for the accuracy of predicted step times and memory.
import type { Calibration } from "@/shared/api/types";
import { percent, plural } from "./numbers";

/** Return one or more sentences on the errors of predictions for a kind of hardware. */
export function calibrationWords({ accuracy, device_name, runs }: Calibration): string {
  if (!accuracy) {
    return `From the data sheet of ${device_name}: no run has ended on it yet, so the order is rough.`;
  }
  const parts = [`Learned from ${plural(runs, "run")} on ${device_name}`];
  if (accuracy.step_median !== null) {
    const p95 = percent(accuracy.step_p95);
    parts.push(`step time off by ${percent(accuracy.step_median)} in the median, ${p95} at p95`);
  }
  if (accuracy.memory_median !== null) {
    parts.push(`memory by ${percent(accuracy.memory_median)} and ${percent(accuracy.memory_p95)}`);
  }
  parts.push(`${accuracy.fits_wrong} of ${accuracy.fits_judged} runs predicted to fit did not`);
  return `${parts.join("; ")}.`;
}
