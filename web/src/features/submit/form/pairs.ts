// Rows of names and values, converted to and from a table of the spec.
import { isObject, type Json, type JsonObject } from "@/shared/format/document";
import type { Pairs } from "../schema";

/** A name and the text of its value; null if the value is hidden. */
export type Row = readonly [name: string, value: string | null];

/** Return the rows of a value: a table, or rows that are not converted to a table yet. */
export function rowsOf(value: Json, { isText }: Pairs): Row[] {
  if (isObject(value)) {
    return Object.entries(value).map(([name, item]) => [name, isText ? plain(item) : scalar(item)]);
  }
  if (!Array.isArray(value)) return [];
  return value
    .filter(Array.isArray)
    .map(([name, item]) => [plain(name ?? null) ?? "", plain(item ?? null)]);
}

/** Return the table, or the rows as lists if a name is absent or repeated. */
export function tableOf(rows: readonly Row[], { isText }: Pairs): Json {
  const given = rows.filter(([name, value]) => name !== "" || value !== "");
  if (problemOf(given) !== null) return given.map((row) => [...row]);
  return Object.fromEntries(given.map(([name, value]) => [name, typed(value, isText)]));
}

function typed(text: string | null, isText: boolean): Json {
  if (text === null) return null;
  return isText ? (referenceTyped(text) ?? text) : scalarTyped(text);
}

/** Return the typed reference to a secret, such as `{"secret": "hf"}`; null for any other text. */
export function referenceTyped(text: string): JsonObject | null {
  if (!text.startsWith("{")) return null;
  try {
    const value = JSON.parse(text) as Json;
    return isObject(value) && typeof value.secret === "string" ? value : null;
  } catch {
    return null;
  }
}

/** Return why rows from `tableOf` are no table; null for other lists. */
export function rowsProblem(value: Json[]): string | null {
  if (!value.every(Array.isArray)) return null;
  return problemOf(value.map(([name]) => [String(name), ""]));
}

function problemOf(rows: readonly Row[]): string | null {
  const names = rows.map(([name]) => name);
  if (names.includes("")) return "A value has no name.";
  const twice = names.find((name, index) => names.indexOf(name) !== index);
  return twice === undefined ? null : `${twice} is given twice.`;
}

function plain(value: Json): string | null {
  if (value === null || typeof value === "string") return value;
  return JSON.stringify(value);
}

/** Return a value as text; a string that would parse as another type is quoted. */
function scalar(value: Json): string | null {
  if (typeof value !== "string") return plain(value);
  return scalarTyped(value) === value ? value : JSON.stringify(value);
}

/** Parse a number, a boolean, a list or a quoted string; return any other text unchanged. */
function scalarTyped(text: string): Json {
  try {
    const value = JSON.parse(text) as Json;
    if (value === null || isObject(value)) return text;
    return typeof value === "number" && !isExact(value, text) ? text : value;
  } catch {
    return text;
  }
}

/** Whether a program gets the typed number: JSON has no `1.0`, and a browser no 2^53 + 1. */
function isExact(value: number, text: string): boolean {
  if (Number.isInteger(value)) return Number.isSafeInteger(value) && !/[.e]/i.test(text);
  return Number.isFinite(value);
}
