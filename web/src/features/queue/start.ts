// Expected starts as text.
import { duration } from "@/shared/format/time";

/** `in 5 min 20 s`; `now` for a moment in the past. */
export function startWords(at: string, now: number): string {
  const seconds = (Date.parse(at) - now) / 1000;
  return seconds < 1 ? "now" : `in ${duration(seconds)}`;
}
