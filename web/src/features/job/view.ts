// What of a job page is shown: all of it lies in the URL, so that a link shows the same.
import { useCallback } from "react";
import { useSearchParams } from "react-router";

export type Changes = Record<string, string | number | null>;

export interface View {
  get: (name: string) => string | null;
  /** A number; null when there is none, or something else. */
  number: (name: string) => number | null;
  /** Change parameters, null to leave them out; `push` makes a step for the back button. */
  set: (changes: Changes, how?: "push" | "replace") => void;
}

export function useView(): View {
  const [params, setParams] = useSearchParams();
  const set = useCallback(
    (changes: Changes, how: "push" | "replace" = "replace") =>
      setParams((old) => changed(old, changes), {
        replace: how === "replace",
        preventScrollReset: true,
      }),
    [setParams],
  );
  return {
    get: (name) => params.get(name),
    number: (name) => numberIn(params, name),
    set,
  };
}

/** Return the parameters with changes. */
export function changed(old: URLSearchParams, changes: Changes): URLSearchParams {
  const next = new URLSearchParams(old);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") next.delete(name);
    else next.set(name, String(value));
  }
  return next;
}

export function numberIn(params: URLSearchParams, name: string): number | null {
  const text = params.get(name);
  return text !== null && /^\d{1,12}$/.test(text) ? Number(text) : null;
}
