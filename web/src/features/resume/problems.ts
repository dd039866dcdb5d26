// Typed values of the dialog, and the problems of a resume, each at its control. Pure.
import { ApiError, messageOf, problemText } from "@/shared/api/errors";

export type Control = "microBatchSize" | "steps" | "checkpoint";

export interface Problems {
  /** Text below each control. */
  at: Partial<Record<Control, string>>;
  /** Problems of other fields, each with the field's name. */
  others: string[];
}

const CONTROLS: Record<string, Control> = {
  "/overrides/micro_batch_size": "microBatchSize",
  "/steps": "steps",
  "/overrides/steps": "steps",
  "/checkpoint_id": "checkpoint",
};

/** Return the problems of a refused resume by control; none without an error. */
export function problemsOf(error: unknown): Problems {
  const found: Problems = { at: {}, others: [] };
  if (error === null || error === undefined) return found;
  const errors = error instanceof ApiError ? error.errors : [];
  if (errors.length === 0) return { at: {}, others: [messageOf(error)] };
  for (const problem of errors) {
    const control = CONTROLS[problem.pointer];
    if (control) found.at[control] = problem.detail;
    else found.others.push(problemText(problem, "overrides"));
  }
  return found;
}

/** A typed number: its value, null for an empty field, or the problem of the text. */
type Typed = { value: number | null; problem?: undefined } | { problem: string };

const WHOLE = /^-?\d{1,15}$/;

/** Parse a typed number; the server checks whether it is legal. */
export function readNumber(text: string): Typed {
  const trimmed = text.trim().replaceAll(",", "");
  if (trimmed === "") return { value: null };
  if (WHOLE.test(trimmed)) return { value: Number(trimmed) };
  return { problem: `${text.trim()} is no whole number of at most 15 digits` };
}

export interface Numbers<Value> {
  microBatchSize: Value;
  steps: Value;
}

/** Return the typed numbers, null for malformed ones, and the problem of each field. */
export function readNumbers(typed: Numbers<string>): {
  numbers: Numbers<number | null> | null;
  wrong: Partial<Numbers<string>>;
} {
  const [size, steps] = [readNumber(typed.microBatchSize), readNumber(typed.steps)];
  if (size.problem === undefined && steps.problem === undefined) {
    return { numbers: { microBatchSize: size.value, steps: steps.value }, wrong: {} };
  }
  const wrong: Partial<Numbers<string>> = {};
  if (size.problem !== undefined) wrong.microBatchSize = size.problem;
  if (steps.problem !== undefined) wrong.steps = steps.problem;
  return { numbers: null, wrong };
}
