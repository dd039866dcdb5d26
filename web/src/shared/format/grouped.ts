// Separators in numbers that are already text.
import { count } from "./numbers";

/** Return a long whole number or a step number with separators; other text is unchanged. */
export function grouped(text: string): string {
  const step = /^step (\d{4,15})$/.exec(text);
  if (step) return `step ${count(Number(step[1]))}`;
  return /^\d{5,15}$/.test(text) ? count(Number(text)) : text;
}
