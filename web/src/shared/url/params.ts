// Typed search parameters: their kinds, and functions to read, change and link them.
import { useCallback, useLayoutEffect, useMemo, useRef } from "react";
import { useLocation, useNavigate, useSearchParams } from "react-router";
import type { Extent } from "@/shared/ui/chart/curve";

/** One value in a URL, under one name or several. */
export interface Param<Value> {
  names: readonly string[];
  /** Return the value; an invalid value counts as absent. */
  read: (search: URLSearchParams) => Value;
  /** Add the value to a search without it; the default adds nothing. */
  write: (search: URLSearchParams, value: Value) => void;
}

/** The parameters of a page, by their names in the code. */
// biome-ignore lint/suspicious/noExplicitAny: each parameter has a type of its own
export type Params = Readonly<Record<string, Param<any>>>;

export type ValuesOf<Declared extends Params> = {
  [Name in keyof Declared]: Declared[Name] extends Param<infer Value> ? Value : never;
};

/** A parameter with one name, from functions between its text and its value; null means absent. */
export function param<Value>(
  name: string,
  parse: (text: string | null) => Value,
  print: (value: Value) => string | null,
): Param<Value> {
  return {
    names: [name],
    read: (search) => parse(search.get(name)),
    write: (search, value) => {
      const text = print(value);
      if (text !== null) search.set(name, text);
    },
  };
}

/** Any text; null if absent. */
export function text(name: string): Param<string | null> {
  return param<string | null>(
    name,
    (found) => found,
    (value) => value || null,
  );
}

/** One of some words; the first is the default. */
export function oneOf<Word extends string>(
  name: string,
  words: readonly [Word, ...Word[]],
): Param<Word> {
  return param<Word>(
    name,
    (found) => words.find((word) => word === found) ?? words[0],
    (value) => (value === words[0] ? null : value),
  );
}

/** Whether the parameter has a certain text. */
export function flag(name: string, on = "1"): Param<boolean> {
  return param<boolean>(
    name,
    (found) => found === on,
    (value) => (value ? on : null),
  );
}

/** A whole number; null if absent. */
export function whole(name: string): Param<number | null> {
  return param<number | null>(name, wholeOf, (value) => (value === null ? null : String(value)));
}

export function wholeOf(found: string | null): number | null {
  return found !== null && /^\d{1,12}$/.test(found) ? Number(found) : null;
}

/** A number with up to six decimals; null if absent. */
export function decimalOf(found: string | null): number | null {
  return found !== null && /^\d{1,15}(\.\d{1,6})?$/.test(found) ? Number(found) : null;
}

/** Every legal value of a repeated name. */
export function list<Word extends string>(
  name: string,
  parse: (found: readonly string[]) => Word[],
): Param<Word[]> {
  return {
    names: [name],
    read: (search) => parse(search.getAll(name)),
    write: (search, words) => {
      for (const word of words) search.append(name, word);
    },
  };
}

/** A stretch of an axis in `from` and `to`; null if absent or empty. */
export function stretch(numberOf: (found: string | null) => number | null): Param<Extent | null> {
  return {
    names: ["from", "to"],
    read: (search) => {
      const [from, to] = [numberOf(search.get("from")), numberOf(search.get("to"))];
      return from !== null && to !== null && from < to ? [from, to] : null;
    },
    write: (search, range) => {
      if (!range) return;
      search.set("from", String(range[0]));
      search.set("to", String(range[1]));
    },
  };
}

/** Return the values of a page in the search of a URL. */
export function valuesIn<Declared extends Params>(
  declared: Declared,
  search: URLSearchParams,
): ValuesOf<Declared> {
  const values = Object.entries(declared).map(([name, { read }]) => [name, read(search)]);
  return Object.fromEntries(values) as ValuesOf<Declared>;
}

/**
 * Return the parameters with changes, in the order of the declaration: one view has one address.
 *
 * Invalid values are removed from the URL; undeclared parameters stay, at the end.
 */
export function changed<Declared extends Params>(
  declared: Declared,
  search: URLSearchParams,
  changes: Partial<ValuesOf<Declared>>,
): URLSearchParams {
  const values: ValuesOf<Declared> = { ...valuesIn(declared, search), ...changes };
  const next = new URLSearchParams();
  for (const [name, { write }] of Object.entries(declared)) write(next, values[name]);
  const own = new Set(Object.values(declared).flatMap(({ names }) => names));
  for (const [name, text] of search) if (!own.has(name)) next.append(name, text);
  return next;
}

/** Return a path with human-readable parameters. */
export function pathTo<Declared extends Params>(
  path: string,
  declared: Declared,
  values: Partial<ValuesOf<Declared>>,
): string {
  return path + searchText(changed(declared, new URLSearchParams(), values));
}

/** Return `?a=b`, empty without parameters; commas and slashes stay as they are. */
export function searchText(search: URLSearchParams): string {
  const found = search.toString().replaceAll("%2C", ",").replaceAll("%2F", "/");
  return found && `?${found}`;
}

/**
 * How a change enters the history: `push` and `open` add an entry for the back button. `close` goes
 * back from an entry that `open` added, whatever it changes, and else replaces the entry.
 */
type How = "push" | "replace" | "open" | "close";

/** The state of a history entry that `open` added. */
const OPENED = "opened";

/** Change some values. */
export type Change<Values> = (changes: Partial<Values>, how?: How) => void;

/** The values of a page in the URL, and how to change them. */
export function usePageParams<Declared extends Params>(
  declared: Declared,
): [values: ValuesOf<Declared>, change: Change<ValuesOf<Declared>>] {
  const [search] = useSearchParams();
  const navigate = useNavigate();
  const { key, state } = useLocation();
  const step = useRef<unknown>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: steps of one state have other keys
  useLayoutEffect(() => {
    step.current = state;
  }, [key, state]);
  const change = useCallback<Change<ValuesOf<Declared>>>(
    (changes, how = "replace") => {
      if (how === "close" && step.current === OPENED) {
        step.current = null; // going back takes a moment; another call in it must not go back further
        void navigate(-1);
        return;
      }
      // Read the present URL: another change may have come since the last render.
      const present = new URLSearchParams(window.location.search);
      void navigate(
        { search: searchText(changed(declared, present, changes)) },
        {
          replace: how === "replace" || how === "close",
          state: how === "open" ? OPENED : how === "replace" ? step.current : null,
          preventScrollReset: true,
        },
      );
    },
    [navigate, declared],
  );
  return [useMemo(() => valuesIn(declared, search), [declared, search]), change];
}
