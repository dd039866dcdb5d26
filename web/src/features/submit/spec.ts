// The spec as it is written: a document that holds only what differs from the defaults.
import type { FormField, Json, JsonObject } from "./schema";

/** Return the value at a JSON pointer; undefined where the document has none. */
export function valueAt(spec: JsonObject, pointer: string): Json | undefined {
  let value: Json | undefined = spec;
  for (const key of keysOf(pointer)) {
    if (!isObject(value)) return undefined;
    value = value[key];
  }
  return value;
}

/** Return the document with a value set; undefined takes it out, and its section once empty. */
export function withValue(spec: JsonObject, pointer: string, value: Json | undefined): JsonObject {
  const [key, ...rest] = keysOf(pointer);
  if (key === undefined) return spec;
  const changed = { ...spec };
  if (rest.length > 0) {
    const inner = isObject(spec[key]) ? spec[key] : {};
    const section = withValue(inner, `/${rest.map(escaped).join("/")}`, value);
    if (Object.keys(section).length > 0) changed[key] = section;
    else delete changed[key];
  } else if (value === undefined) delete changed[key];
  else changed[key] = value;
  return changed;
}

/** Return the document with a field set; its default is left out. */
export function withField(spec: JsonObject, field: FormField, value: Json): JsonObject {
  return withValue(spec, field.pointer, isEqual(value, field.default) ? undefined : value);
}

/** Return the named fields of a whole spec, such as `training.steps`, without masked secrets. */
export function sparseSpec(whole: JsonObject, fields: readonly string[]): JsonObject {
  let spec: JsonObject = {};
  for (const pointer of fields.map((field) => `/${field.replaceAll(".", "/")}`)) {
    const value = valueAt(whole, pointer);
    if (value !== MASK) spec = withValue(spec, pointer, value);
  }
  return spec;
}

const MASK = "********";

const NUMBER = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i;

/** Return the typed number, or the text where it is none: the server then rejects it. */
export function numberTyped(text: string): number | string {
  const plain = text.replaceAll(/[\s_]/g, "");
  const number = Number(plain);
  // Beyond 2^53 a number would quietly become another one.
  const isExact = !Number.isInteger(number) || Number.isSafeInteger(number);
  return NUMBER.test(plain) && isExact ? number : text.trim();
}

/** Return whether two values are the same JSON. */
export function isEqual(one: Json, other: Json): boolean {
  return JSON.stringify(sorted(one)) === JSON.stringify(sorted(other));
}

export function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function sorted(value: Json): Json {
  if (Array.isArray(value)) return value.map(sorted);
  if (!isObject(value)) return value;
  const entries = Object.entries(value).map(([key, item]) => [key, sorted(item)] as const);
  return Object.fromEntries(entries.sort(([a], [b]) => (a < b ? -1 : 1)));
}

function keysOf(pointer: string): string[] {
  return pointer
    .split("/")
    .slice(1)
    .map((key) => key.replaceAll("~1", "/").replaceAll("~0", "~"));
}

function escaped(key: string): string {
  return key.replaceAll("~", "~0").replaceAll("/", "~1");
}
