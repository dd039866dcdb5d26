// A failure as text: its name, and the label of the button that resumes after it.
import type { Failure } from "@/shared/api/types";

/** The reason in a word or two; for a non-finite value, which one. */
export function reasonWords({ reason, metric }: Failure): string {
  if (reason !== "non_finite_loss") return reason.replaceAll("_", " ");
  const name = metric?.split("/").at(-1)?.replaceAll("_", " ");
  return `${name ?? "a value"} not finite`;
}

const LABELS: Record<NonNullable<Failure["remedy"]["resume"]>, string> = {
  memory: "Resume with less memory per slot…",
  earlier: "Resume from an earlier checkpoint…",
  free: "Resume on what is free…",
};

/** The label of the button that opens the resume dialog with the remedy. */
export function resumeLabel({ remedy: { resume } }: Failure): string {
  return resume ? LABELS[resume] : "Resume…";
}
