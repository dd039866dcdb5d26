import { age, secondsBetween } from "@/shared/format/time";

/** `in 6 d`, `never`, `over` */
export function until(at: string | null, now = new Date().toISOString()): string {
  if (at === null) return "never";
  const seconds = secondsBetween(now, at);
  return seconds <= 0 ? "over" : `in ${age(Math.max(seconds, 5))}`;
}
