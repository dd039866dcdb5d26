// The categories of the goodput ledger: their words, their groups, and their shares of the bar.
import type { Goodput } from "@/shared/api/types";

type Category = Goodput["categories"][number]["category"];

/** Words of each category, and the number of its group's colour in the theme. */
const CATEGORIES: Record<Category, { words: string; group: number }> = {
  productive: { words: "Productive steps", group: 3 },
  data_wait: { words: "Waiting for data", group: 5 },
  compilation: { words: "Compilation", group: 5 },
  save_stall: { words: "Stalls of saves", group: 5 },
  validation: { words: "Validation", group: 5 },
  startup: { words: "Start-up", group: 1 },
  ending: { words: "Saving and leaving", group: 1 },
  queued: { words: "First wait for slots", group: 7 },
  requeued: { words: "Later waits for slots", group: 7 },
  backoff: { words: "Pause before a retry", group: 7 },
  paused: { words: "Stopped by a person", group: 7 },
  lost: { words: "Steps lost", group: 6 },
  idle_after_failure: { words: "Idle after a failure", group: 6 },
  unreachable: { words: "Unreachable", group: 6 },
  other: { words: "Other", group: 4 },
};

export interface Part {
  category: Category;
  words: string;
  group: number;
  seconds: number;
  /** Share of the wall time, 0 to 1. */
  share: number;
}

/** The categories that have time, in the order of the server, which keeps groups together. */
export function partsOf(goodput: Goodput): Part[] {
  return goodput.categories
    .filter(({ milliseconds }) => milliseconds > 0)
    .map(({ category, milliseconds }) => ({
      category,
      ...CATEGORIES[category],
      seconds: milliseconds / 1000,
      share: milliseconds / goodput.wall_milliseconds,
    }));
}

/** `82.4 %`; `<0.1 %` and `>99.9 %` instead of a rounded 0 or 100 that is neither. */
export function shareWords(share: number): string {
  if (share > 0 && share < 0.0005) return "<0.1 %";
  if (share < 1 && share >= 0.9995) return ">99.9 %";
  return `${(share * 100).toFixed(1)} %`;
}
