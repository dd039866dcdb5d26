// Numbers that came as text.
import { count } from "./numbers";

/** A long whole number with separators; everything else as it came. */
export function grouped(text: string): string {
  return /^\d{5,15}$/.test(text) ? count(Number(text)) : text;
}
