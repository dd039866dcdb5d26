// The horizontal axis of a chart: ticks, and places and stretches as text.
import { count, short } from "@/shared/format/numbers";
import { tickLabels } from "@/shared/format/ticks";
import { duration } from "@/shared/format/time";
import type { Extent } from "./curve";

/** Unit of the horizontal axis: steps, tokens trained on, or seconds since each job's first point. */
export type Axis = "step" | "tokens" | "seconds";

export const AXIS_WORDS: Record<Axis, string> = {
  step: "Steps",
  tokens: "Tokens",
  seconds: "Wall time",
};

/** Gaps between ticks of a clock, up to a hundred days. */
const CLOCK_GAPS = [
  ...[1, 2, 5, 10, 15, 30],
  ...[1, 2, 5, 10, 15, 30].map((minutes) => minutes * 60),
  ...[1, 2, 3, 6, 12].map((hours) => hours * 3600),
  ...[1, 2, 5, 10, 20, 50, 100].map((days) => days * 86_400),
];

/** Return the distances between ticks of a clock; undefined, for uPlot's own, for counts. */
export function gapsOf(axis: Axis): number[] | undefined {
  return axis === "seconds" ? CLOCK_GAPS : undefined;
}

/** Return the labels of an axis' ticks; a place between two steps has none. */
export function labelsOf(axis: Axis, places: readonly number[]): string[] {
  if (axis === "seconds") return places.map(clock);
  const labels = tickLabels(places.filter(Number.isInteger));
  return places.map((place) => (Number.isInteger(place) ? (labels.shift() ?? "") : ""));
}

/** `45 s`, `1:30 min`, `5 min`, `2:30 h`, `3 d`: short, for ticks. */
export function clock(seconds: number): string {
  if (!Number.isInteger(seconds)) return "";
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${parted(seconds, 60)} min`;
  if (seconds < 86_400) return `${parted(Math.round(seconds / 60), 60)} h`;
  const hours = Math.round(seconds / 3600);
  return hours % 24 === 0 ? `${hours / 24} d` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

function parted(value: number, by: number): string {
  const rest = value % by;
  return rest === 0 ? String(value / by) : `${Math.floor(value / by)}:${two(rest)}`;
}

function two(value: number): string {
  return String(value).padStart(2, "0");
}

/** A stretch in words: `steps 650–760`, `1.20M–2.40M tokens`, `3 min 20 s – 5 min 00 s`. */
export function stretchText(axis: Axis, [first, last]: Extent): string {
  if (axis === "step") return `steps ${count(first)}–${count(last)}`;
  if (axis === "tokens") return `${short(first)}–${short(last)} tokens`;
  return `${duration(first)} – ${duration(last)}`;
}

/** A place in words: `step 1,200`, `1.20M tokens`, `3 min 20 s`. */
export function placeText(axis: Axis, place: number): string {
  if (axis === "step") return `step ${count(Math.round(place))}`;
  if (axis === "tokens") return `${short(Math.round(place))} tokens`;
  return duration(place);
}

/** A stretch rounded for the URL: whole steps and tokens, seconds with one decimal. */
export function wholeStretch([from, to]: Extent, axis: Axis): Extent {
  const unit = axis === "seconds" ? 0.1 : 1;
  const first = Math.max(0, Math.floor(from / unit));
  const last = Math.max(Math.ceil(to / unit), first + 1);
  return axis === "seconds" ? [first / 10, last / 10] : [first, last];
}
