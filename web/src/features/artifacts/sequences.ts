// Artifacts of one name as a sequence over steps, and a histogram as bars.

import type { Artifact, Histogram } from "@/shared/api/types";
import { count as grouped } from "@/shared/format/numbers";

export interface Sequence {
  name: string;
  /** In the order in which they were logged. */
  items: readonly Artifact[];
}

/** Return the sequences by name, from a list with the newest item first. */
export function sequencesOf(newestFirst: readonly Artifact[]): Sequence[] {
  const byName = new Map<string, Artifact[]>();
  for (const artifact of newestFirst.toReversed()) {
    const own = byName.get(artifact.name);
    if (own) own.push(artifact);
    else byName.set(artifact.name, [artifact]);
  }
  return [...byName]
    .map(([name, items]) => ({ name, items }))
    .toSorted((one, other) => one.name.localeCompare(other.name, "en", { numeric: true }));
}

export interface Bar {
  /** Left edge and width, as shares of the whole range. */
  x: number;
  width: number;
  /** Density (count by width) relative to the highest bar, so that unequal bins compare. */
  height: number;
}

export function barsOf({ edges, counts }: Histogram): Bar[] {
  const first = edges[0] ?? 0;
  const range = (edges.at(-1) ?? 0) - first;
  if (!(range > 0)) return [];
  const bars = counts.map((count, index) => {
    const low = edges[index] ?? first;
    const width = ((edges[index + 1] ?? low) - low) / range;
    return { x: (low - first) / range, width, height: width > 0 ? count / width : 0 };
  });
  const highest = Math.max(...bars.map(({ height }) => height));
  return bars.map((bar) => ({ ...bar, height: highest > 0 ? bar.height / highest : 0 }));
}

/** Return the number of values outside all bins, in words; empty without any. */
export function apart({ nan, positive_infinity, negative_infinity }: Histogram): string {
  const parts: [number, string][] = [
    [nan, "NaN"],
    [positive_infinity, "+Inf"],
    [negative_infinity, "-Inf"],
  ];
  return parts
    .filter(([count]) => count > 0)
    .map(([count, word]) => `${grouped(count)} ${word}`)
    .join(", ");
}
