// The view of a comparison, kept in the URL: its jobs by place, its series.
import { FIRST } from "@/shared/format/series";
import { COMPARE, type CompareView, type Slots, trimmed } from "@/shared/url/pages";
import { type Change, usePageParams } from "@/shared/url/params";

/** Charts drawn without a choice. */
const USUAL = 4;

/** The jobs of a view, in their order. */
export function jobsOf(view: Pick<CompareView, "slots">): string[] {
  return view.slots.filter((id) => id !== null);
}

/** Return the places in the present URL: another job may have been removed since the last render. */
export function presentSlots(): Slots {
  return COMPARE.slots.read(new URLSearchParams(window.location.search));
}

/** Return the places with a job in the first free one. */
export function withJob(slots: Slots, id: string): Slots {
  if (slots.includes(id)) return slots;
  const free = slots.indexOf(null);
  return free < 0 ? [...slots, id] : slots.with(free, id);
}

/** Return the places without a job; the others keep theirs. */
export function withoutJob(slots: Slots, id: string): Slots {
  return trimmed(slots.map((each) => (each === id ? null : each)));
}

/** Return the series to draw: the chosen ones that any job has, else the defaults. */
export function drawnNames(
  chosen: CompareView["names"],
  known: ReadonlySet<string>,
): readonly string[] {
  if (chosen) return chosen.filter((name) => known.has(name));
  const usual = FIRST.filter((name) => known.has(name)).slice(0, USUAL);
  return usual.length > 0 ? usual : [...known].slice(0, USUAL);
}

export type ChangeView = Change<CompareView>;

export function useCompareView(): [CompareView, ChangeView] {
  return usePageParams(COMPARE);
}
