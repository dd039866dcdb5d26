// Series of metrics: the most used ones, and the format of their values.
import { metric, short, significant } from "./numbers";
import { duration } from "./time";

/** Series that are drawn first, in this order, if the job has them. */
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

/** Return the format of a series' values, by the unit in its name. */
export function formatOf(name: string): (value: number) => string {
  if (name.endsWith("_seconds")) return duration;
  if (name.endsWith("_gib")) return (gib) => `${significant(gib, 3)} GiB`; // as on the axis
  if (name.includes("tokens") || name.includes("sequences")) return short;
  return metric;
}
