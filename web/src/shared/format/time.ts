// Durations and moments as short text.
import { fixed, NONE, significant } from "./numbers";

const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** Two units at most: `4 ms`, `0.06 s`, `4.2 s`, `45 s`, `3 min 20 s`, `2 h 05 min`, `6 d 03 h`. */
export function duration(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds)) return NONE;
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds < 0.00995) return seconds === 0 ? "0 s" : `${significant(seconds * 1000, 2)} ms`;
  if (seconds < 0.995) return `${significant(seconds, 2)} s`;
  if (seconds < 9.95) return `${fixed(seconds, 1)} s`;
  const whole = Math.round(seconds);
  if (whole < MINUTE) return `${whole} s`;
  if (whole < HOUR) return `${Math.floor(whole / MINUTE)} min ${two(whole % MINUTE)} s`;
  if (whole < DAY)
    return `${Math.floor(whole / HOUR)} h ${two(Math.floor((whole % HOUR) / 60))} min`;
  return `${Math.floor(whole / DAY)} d ${two(Math.floor((whole % DAY) / HOUR))} h`;
}

/** A duration with hundredths: `0.02 s`, `3.40 s`, `45 s`. */
export function fine(seconds: number | null | undefined): string {
  if (seconds == null || !(seconds >= 0.00995 && seconds < 9.995)) return duration(seconds);
  return `${fixed(seconds, 2)} s`;
}

/** One unit, for columns and ages: `now`, `45 s`, `3 min`, `2 h`, `6 d`. */
export function age(seconds: number): string {
  if (seconds < 5) return "now";
  if (seconds < MINUTE) return `${Math.floor(seconds)} s`;
  if (seconds < HOUR) return `${Math.floor(seconds / MINUTE)} min`;
  if (seconds < 2 * DAY) return `${Math.floor(seconds / HOUR)} h`;
  return `${Math.floor(seconds / DAY)} d`;
}

/** Seconds between two moments; `to` defaults to now. */
export function secondsBetween(from: string, to?: string | null): number {
  return ((to ? Date.parse(to) : Date.now()) - Date.parse(from)) / 1000;
}

const MOMENT = new Intl.DateTimeFormat("en-GB", {
  dateStyle: "medium",
  timeStyle: "medium",
  hourCycle: "h23",
});

/** `21 Nov 2026, 14:03:07` in the browser's time zone. */
export function moment(at: string): string {
  return MOMENT.format(new Date(at));
}

function two(value: number): string {
  return String(value).padStart(2, "0");
}
