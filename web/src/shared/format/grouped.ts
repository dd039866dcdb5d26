// Numbers that came as text.
import { count } from "./numbers";

/** A long whole number, and the number of a step, with separators; everything else as it came. */
export function grouped(text: string): string {
  const step = /^step (\d{4,15})$/.exec(text);
  if (step) return `step ${count(Number(step[1]))}`;
  return /^\d{5,15}$/.test(text) ? count(Number(text)) : text;
}
