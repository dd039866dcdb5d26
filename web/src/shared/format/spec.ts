// Fields of a spec as text.
import { NONE } from "./numbers";

/** Sections of the built-in trainer; a job with a program has only their defaults. */
export const OF_THE_TRAINER: ReadonlySet<string> = new Set([
  "model",
  "data",
  "training",
  "optimizer",
  "lr_schedule",
  "parallelism",
  "activation_checkpoint",
  "compile",
  "quantization",
  "validation",
]);

/** `100`, `a, b`; `none` for an empty list. */
export function valueText(value: unknown): string {
  if (value === null || value === undefined || value === "") return NONE;
  if (Array.isArray(value)) return value.map(valueText).join(", ") || "none";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** A value from a script, on one line: invisible characters are marked. */
export function factText(value: boolean | number | string): string {
  if (value === "") return '""';
  if (typeof value === "number" && value !== 0 && Math.abs(value) < 1e-3) {
    return value.toExponential();
  }
  return String(value).replaceAll(/[\p{C}\u2028\u2029]/gu, "\ufffd");
}

/** Fields with their values, in the form of `--set`. */
export function autoWords(values: Record<string, boolean | number | string>): string {
  return Object.entries(values)
    .map(([field, value]) => `${field}=${value}`)
    .join(", ");
}
