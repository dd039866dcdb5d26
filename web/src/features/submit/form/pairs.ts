// Rows of names and values, and the table of the spec that they are.
import { isObject, type Json } from "@/shared/format/document";
import type { Pairs } from "../schema";

/** A name and the text of its value; null where the value is not known. */
export type Row = readonly [name: string, value: string | null];

/** Return the rows of a value: of a table, or of rows that are no table yet. */
export function rowsOf(value: Json, { isText }: Pairs): Row[] {
  if (isObject(value)) {
    return Object.entries(value).map(([name, item]) => [name, isText ? plain(item) : scalar(item)]);
  }
  if (!Array.isArray(value)) return [];
  return value
    .filter(Array.isArray)
    .map(([name, item]) => [plain(name ?? null) ?? "", plain(item ?? null)]);
}

/** Return the table, or the rows as lists where a name is absent or given twice. */
export function tableOf(rows: readonly Row[], { isText }: Pairs): Json {
  const given = rows.filter(([name, value]) => name !== "" || value !== "");
  if (problemOf(given) !== null) return given.map((row) => [...row]);
  return Object.fromEntries(
    given.map(([name, value]) => [name, isText || value === null ? value : scalarTyped(value)]),
  );
}

/** Return why rows are no table, as `tableOf` returns them; null for other lists. */
export function rowsProblem(value: Json[]): string | null {
  if (!value.every(Array.isArray)) return null;
  return problemOf(value.map(([name]) => [String(name), ""]));
}

function problemOf(rows: readonly Row[]): string | null {
  const names = rows.map(([name]) => name);
  if (names.includes("")) return "A value has no name.";
  const twice = names.find((name, index) => names.indexOf(name) !== index);
  return twice === undefined ? null : `${twice} is there twice.`;
}

function plain(value: Json): string | null {
  if (value === null || typeof value === "string") return value;
  return JSON.stringify(value);
}

/** A text that would be read as something else stands in quotes. */
function scalar(value: Json): string | null {
  if (typeof value !== "string") return plain(value);
  return scalarTyped(value) === value ? value : JSON.stringify(value);
}

/** Return a number, a boolean, a list or a text in quotes; any other text as it is. */
function scalarTyped(text: string): Json {
  try {
    const value = JSON.parse(text) as Json;
    if (value === null || isObject(value)) return text;
    return typeof value === "number" && !isExact(value, text) ? text : value;
  } catch {
    return text;
  }
}

/** Whether a program gets what was typed: JSON has no `1.0`, and a browser no 2^53 + 1. */
function isExact(value: number, text: string): boolean {
  if (Number.isInteger(value)) return Number.isSafeInteger(value) && !/[.e]/i.test(text);
  return Number.isFinite(value);
}
