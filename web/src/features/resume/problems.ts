// What is wrong with a resume, each problem at the control that it is about. Pure.
import { ApiError, messageOf } from "@/shared/api/errors";

export type Control = "microBatchSize" | "steps" | "checkpoint";

export interface Problems {
  /** What a control says underneath. */
  at: Partial<Record<Control, string>>;
  /** What belongs to none of them, each with its field. */
  others: string[];
}

const CONTROLS: Record<string, Control> = {
  "/overrides/micro_batch_size": "microBatchSize",
  "/steps": "steps",
  "/overrides/steps": "steps",
  "/checkpoint_id": "checkpoint",
};

/** Return where the problems of a refused resume belong; none without an error. */
export function problemsOf(error: unknown): Problems {
  const found: Problems = { at: {}, others: [] };
  if (error === null || error === undefined) return found;
  const errors = error instanceof ApiError ? error.errors : [];
  if (errors.length === 0) return { at: {}, others: [messageOf(error)] };
  for (const { pointer, detail } of errors) {
    const control = CONTROLS[pointer];
    if (control) found.at[control] = detail;
    else found.others.push(`${fieldOf(pointer)}${detail}`);
  }
  return found;
}

/** `parallelism.tp: ` from a pointer into the request. */
function fieldOf(pointer: string): string {
  const path = pointer.replace(/^\/(overrides\/)?/, "").replaceAll("/", ".");
  return path === "" ? "" : `${path}: `;
}

/** A number that was typed: its value, null where nothing was, or what is wrong with the text. */
export type Typed = { value: number | null; problem?: undefined } | { problem: string };

const WHOLE = /^-?\d{1,15}$/;

/** Read what was typed; whether the number is legal is the server's to say. */
export function readNumber(text: string): Typed {
  const trimmed = text.trim().replaceAll(",", "");
  if (trimmed === "") return { value: null };
  if (WHOLE.test(trimmed)) return { value: Number(trimmed) };
  return { problem: `${text.trim()} is no whole number of at most 15 digits` };
}
