// A failure as text: its name, and the label of the button with the remedy.

import type { Failure, NextAction } from "@/shared/api/types";
import { count } from "@/shared/format/numbers";

/** The reason in a word or two, with the name of a non-finite value. */
export function reasonWords({ reason, metric }: Failure): string {
  if (reason !== "non_finite_loss") return reason.replaceAll("_", " ");
  const name = metric?.split("/").at(-1)?.replaceAll("_", " ");
  return `${name ?? "a value"} NaN or infinite`;
}

const RESUMES: Record<NonNullable<NextAction["aim"]>, string> = {
  memory: "Resume with less memory per slot…",
  free: "Resume on free slots…",
};

/** The label of the button for the next action. */
export function actionLabel({ verb, aim, step, field }: NextAction): string {
  if (verb === "fork") return `Fork step ${count(step ?? 0)} with another ${field}…`;
  if (verb === "submit") return "New job with changes";
  return aim ? RESUMES[aim] : "Resume…";
}
