// What a comparison shows: all of it lies in the URL, so that a link shows the same.
import { useCallback, useMemo } from "react";
import { useLocation, useNavigate } from "react-router";
import { MOST_COMPARED } from "@/shared/api/queries";
import { FIRST } from "@/shared/format/series";
import type { Extent } from "@/shared/ui/chart/lines";

/** What the curves run over: steps, tokens trained on, or seconds since each job's first point. */
export type Axis = "step" | "tokens" | "seconds";

export interface CompareView {
  /** Ids by place: a job keeps its colour when another one leaves, and its place stays empty. */
  slots: readonly (string | null)[];
  /** Series in the order of their charts; null for the usual ones. */
  names: readonly string[] | null;
  axis: Axis;
  isLog: boolean;
  /** Whether the axes hold values far from the usual ones too. */
  isFull: boolean;
  /** Weight of the past in the moving average, 0 to `MOST_SMOOTHING`; 0 is none. */
  smoothing: number;
  /** Stretch of the axis that is shown; all of it when null. */
  range: Extent | null;
}

export const MOST_NAMES = 12;
export const MOST_SMOOTHING = 0.99;
/** Charts that are drawn when none was chosen. */
const USUAL = 4;

const ID = /^[0-7][0-9a-hjkmnp-tv-z]{25}$/;
const NAME = /^[A-Za-z0-9_./-]+$/;
const AXES: readonly Axis[] = ["step", "tokens", "seconds"];

/** Return the view in a URL; what no view can hold is left out. */
export function readView(search: string): CompareView {
  const params = new URLSearchParams(search);
  const names = params.get("names")?.split(",") ?? null;
  const axis = AXES.find((each) => each === params.get("x")) ?? "step";
  const smoothing = numberIn(params, "smooth") ?? 0;
  return {
    slots: slotsOf(params.get("jobs") ?? ""),
    names: names && unique(names.filter((name) => NAME.test(name))).slice(0, MOST_NAMES),
    axis,
    isLog: params.get("y") === "log",
    isFull: params.get("full") === "1",
    smoothing: Math.min(smoothing, MOST_SMOOTHING),
    range: rangeIn(params),
  };
}

/** Return the URL's search of a view, as a person can read it. */
export function writeView(view: CompareView): string {
  const params = new URLSearchParams();
  const slots = trimmed(view.slots);
  if (slots.length > 0) params.set("jobs", slots.map((id) => id ?? "").join(","));
  if (view.names) params.set("names", view.names.join(","));
  if (view.axis !== "step") params.set("x", view.axis);
  if (view.isLog) params.set("y", "log");
  if (view.isFull) params.set("full", "1");
  if (view.smoothing > 0) params.set("smooth", String(view.smoothing));
  if (view.range) {
    params.set("from", String(view.range[0]));
    params.set("to", String(view.range[1]));
  }
  const text = params.toString().replaceAll("%2C", ",").replaceAll("%2F", "/");
  return text ? `?${text}` : "";
}

/** The jobs of a view, in their order. */
export function jobsOf(view: Pick<CompareView, "slots">): string[] {
  return view.slots.filter((id) => id !== null);
}

/** Return the places with a job in the first one that is free. */
export function withJob(slots: CompareView["slots"], id: string): CompareView["slots"] {
  if (slots.includes(id)) return slots;
  const free = slots.indexOf(null);
  return free < 0 ? [...slots, id] : slots.with(free, id);
}

/** Return the places without a job; the others keep theirs. */
export function withoutJob(slots: CompareView["slots"], id: string): CompareView["slots"] {
  return trimmed(slots.map((each) => (each === id ? null : each)));
}

/** The series that are drawn: those chosen, as far as any of the jobs has them, else usual ones. */
export function drawnNames(
  chosen: CompareView["names"],
  known: ReadonlySet<string>,
): readonly string[] {
  if (chosen) return chosen.filter((name) => known.has(name));
  const usual = FIRST.filter((name) => known.has(name)).slice(0, USUAL);
  return usual.length > 0 ? usual : [...known].slice(0, USUAL);
}

export type ChangeView = (changes: Partial<CompareView>, how?: "push" | "replace") => void;

export function useCompareView(): [CompareView, ChangeView] {
  const { search } = useLocation();
  const navigate = useNavigate();
  const change = useCallback<ChangeView>(
    (changes, how = "replace") => {
      // What stands in the URL now: another change may have come since the last drawing.
      const present = readView(window.location.search);
      void navigate(
        { search: writeView({ ...present, ...changes }) },
        { replace: how === "replace", preventScrollReset: true },
      );
    },
    [navigate],
  );
  return [useMemo(() => readView(search), [search]), change];
}

function slotsOf(text: string): (string | null)[] {
  const ids = text.split(",").map((id) => (ID.test(id) ? id : null));
  const once = trimmed(ids.map((id, at) => (ids.indexOf(id) === at ? id : null)));
  // More places than colours: the empty ones go.
  return once.length > MOST_COMPARED ? once.filter((id) => id !== null) : [...once];
}

function trimmed(slots: CompareView["slots"]): CompareView["slots"] {
  return slots.slice(0, slots.findLastIndex((id) => id !== null) + 1);
}

function rangeIn(params: URLSearchParams): Extent | null {
  const [from, to] = [numberIn(params, "from"), numberIn(params, "to")];
  return from !== null && to !== null && from < to ? [from, to] : null;
}

function numberIn(params: URLSearchParams, name: string): number | null {
  const text = params.get(name) ?? "";
  return /^\d{1,15}(\.\d{1,6})?$/.test(text) ? Number(text) : null;
}

function unique(names: readonly string[]): string[] {
  return [...new Set(names)];
}
