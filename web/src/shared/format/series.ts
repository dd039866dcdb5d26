// Series of metrics: which ones most people want, and how their values are written.
import { metric, short, significant } from "./numbers";
import { duration } from "./time";

/** Drawn first, in this order, where the job has them. */
export const FIRST = [
  "train/loss",
  "validation/loss",
  "train/grad_norm",
  "train/lr",
  "perf/tokens_per_second_per_device",
  "memory/peak_reserved_gib",
  "memory/peak_rss_gib",
  "checkpoint/stall_seconds",
  "perf/mfu",
];

/** Return how values of a series are written: by the unit that its name carries. */
export function formatOf(name: string): (value: number) => string {
  if (name.endsWith("_seconds")) return duration;
  if (name.endsWith("_gib")) return (gib) => `${significant(gib, 3)} GiB`; // as on the axis
  if (name.includes("tokens") || name.includes("sequences")) return short;
  return metric;
}
