// The keyboard on the jobs page: j and k (or arrows) move between rows, Enter opens, / searches, x ticks
// the row, c compares the ticked jobs.
import { useEffect } from "react";
import { useNavigate } from "react-router";

export const SEARCH_ID = "job-search";
export const COMPARE_ID = "compare-picked";

type Action = () => boolean;

/** Keys that work anywhere except in a control. */
const ANYWHERE: Record<string, Action> = {
  j: () => moveFocus(1),
  k: () => moveFocus(-1),
  "/": () => focus(document.getElementById(SEARCH_ID)),
  c: () => click(document.getElementById(COMPARE_ID)),
  x: () => click(focusedRow()?.querySelector<HTMLElement>(".row-pick input")),
};
/** Keys that work only in the rows: elsewhere arrows scroll the page. */
const IN_ROWS: Record<string, Action> = {
  ArrowDown: () => moveFocus(1),
  ArrowUp: () => moveFocus(-1),
};
const IN_SEARCH: Record<string, Action> = { ArrowDown: () => moveFocus(1) };

export function useJobKeys(): void {
  const navigate = useNavigate();
  useEffect(() => {
    const onKeyDown = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const keys = keysAt(document.activeElement);
      const action = event.key === "n" && keys !== IN_SEARCH ? openForm : keys[event.key];
      if (action?.()) event.preventDefault();
    };
    const openForm = () => {
      void navigate("/jobs/new");
      return true;
    };
    window.addEventListener("keydown", onKeyDown);
    return () => window.removeEventListener("keydown", onKeyDown);
  }, [navigate]);
}

/** Return the keys that work while an element has the focus. */
function keysAt(focused: Element | null): Record<string, Action> {
  if (focused?.matches("input:not([type=checkbox]), textarea, select")) return IN_SEARCH;
  return focused?.closest("tr[data-job]") ? { ...ANYWHERE, ...IN_ROWS } : ANYWHERE;
}

/** Move the focus to the next or previous row; to the first visible row if no row has it. */
function moveFocus(by: 1 | -1): boolean {
  const links = [...document.querySelectorAll<HTMLElement>("tr[data-job] .row-link")];
  const at = links.findIndex((link) => link.closest("tr")?.contains(document.activeElement));
  if (at < 0) return focus(links.find((link) => link.getBoundingClientRect().top >= 0));
  return focus(links[Math.min(Math.max(at + by, 0), links.length - 1)]);
}

function focusedRow(): Element | null | undefined {
  return document.activeElement?.closest("tr[data-job]");
}

function click(element: HTMLElement | null | undefined): boolean {
  element?.click();
  return element != null;
}

function focus(element: HTMLElement | null | undefined): boolean {
  element?.focus();
  return element != null;
}
