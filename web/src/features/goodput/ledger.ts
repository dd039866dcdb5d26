// The categories of the goodput ledger: their groups, and their shares of the bar.
import type { ClusterGoodput, Goodput } from "@/shared/api/types";
import { count, fixed, NONE, percent } from "@/shared/format/numbers";

type SlotTimes = ClusterGoodput["categories"];
type Category = Goodput["categories"][number]["category"];

/** Number of each category's colour in the theme: one per group, in shades. */
const GROUPS: Record<Category, number> = {
  productive: 3,
  data_wait: 5,
  compilation: 5,
  save_stall: 5,
  validation: 5,
  startup: 1,
  ending: 1,
  queued: 7,
  requeued: 7,
  backoff: 7,
  paused: 7,
  lost: 6,
  idle_after_failure: 6,
  unreachable: 6,
  other: 4,
  spare: 2,
  idle: 7,
  drained: 2,
  withheld: 2,
  offline: 2,
};

/** Return the classes of a category: within a group each category is lighter than the one before. */
function colourOf(category: Category): string {
  const group = GROUPS[category];
  const alike = (Object.keys(GROUPS) as Category[]).filter((each) => GROUPS[each] === group);
  return `part-${group} shade-${alike.indexOf(category)}`;
}

export interface Part {
  category: Category;
  words: string;
  /** Classes of its colour, and of its shade within the group. */
  colour: string;
  seconds: number;
  /** Share of all the time, 0 to 1. */
  share: number;
}

/** Return a job's categories with time, in the order of the server, which keeps groups together. */
export function partsOf(goodput: Goodput): Part[] {
  return parts(goodput.categories, goodput.wall_milliseconds);
}

/** Return the categories with slot-time; seconds are slot-seconds. */
export function partsOfSlots(times: SlotTimes, whole: number): Part[] {
  return parts(
    times.map((each) => ({ ...each, milliseconds: each.slot_milliseconds })),
    whole,
  );
}

/** Return the share of a category, 0 to 1; 0 without any time. */
export function shareOf(times: SlotTimes, category: Category, whole: number): number {
  const found = times.find((each) => each.category === category);
  return found && whole > 0 ? found.slot_milliseconds / whole : 0;
}

interface Time {
  category: Category;
  words: string;
  milliseconds: number;
}

function parts(times: readonly Time[], whole: number): Part[] {
  return times
    .filter(({ milliseconds }) => milliseconds > 0)
    .map(({ category, words, milliseconds }) => ({
      category,
      words: capitalized(words),
      colour: colourOf(category),
      seconds: milliseconds / 1000,
      share: milliseconds / whole,
    }));
}

/** `1,234 slot-hours`, with a decimal below ten. */
export function slotHours(slotMilliseconds: number): string {
  const hours = slotMilliseconds / 3_600_000;
  if (hours > 0 && hours < 0.05) return "<0.1 slot-hours";
  return `${hours < 9.95 ? fixed(hours, 1) : count(hours)} slot-hours`;
}

function capitalized(words: string): string {
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** `82.4 %`, `0 %`; `<0.1 %` and `>99.9 %` for shares that would round to 0 or 100. */
export function shareWords(share: number): string {
  if (share === 0 || share === 1) return percent(share);
  if (share > 0 && share < 0.0005) return "<0.1 %";
  if (share < 1 && share >= 0.9995) return ">99.9 %";
  return `${fixed(share * 100, 1)} %`;
}

/** The same, with a dash for an unknown share. */
export function ratioWords(share: number | null): string {
  return share === null ? NONE : shareWords(share);
}
