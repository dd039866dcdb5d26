// A spec as people write it: a JSON document of the values that differ from the defaults.

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type JsonObject = { [key: string]: Json };

/** Return the value at a JSON pointer; undefined where the document has none. */
export function valueAt(spec: JsonObject, pointer: string): Json | undefined {
  let value: Json | undefined = spec;
  for (const key of keysOf(pointer)) {
    if (!isObject(value)) return undefined;
    value = value[key];
  }
  return value;
}

/** Return the document with a value set; undefined removes it, and its section once empty. */
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

export interface SparseSpec {
  spec: JsonObject;
  /** Pointers of omitted values: masked, or not exact in a browser. */
  hidden: string[];
}

/** Return the named fields of a whole spec, such as `training.steps`. */
export function sparseSpec(whole: JsonObject, fields: readonly string[]): SparseSpec {
  const hidden: string[] = [];
  let spec: JsonObject = {};
  for (const pointer of fields.map((field) => `/${field.replaceAll(".", "/")}`)) {
    const value = valueAt(whole, pointer);
    if (value !== undefined) spec = withValue(spec, pointer, readable(value, pointer, hidden));
  }
  return { spec, hidden };
}

/** Return a value without its hidden parts; undefined where it, or an item of its list, is hidden. */
function readable(value: Json, pointer: string, hidden: string[]): Json | undefined {
  if (isHidden(value) || (Array.isArray(value) && value.some(hasHidden))) {
    hidden.push(pointer);
    return undefined;
  }
  if (!isObject(value)) return value;
  const entries = Object.entries(value).map(
    ([name, inner]) => [name, readable(inner, `${pointer}/${escaped(name)}`, hidden)] as const,
  );
  return Object.fromEntries(
    entries.filter((entry): entry is [string, Json] => entry[1] !== undefined),
  );
}

/** Return the pointers of values that are null. */
export function nullsIn(value: Json, pointer = ""): string[] {
  if (value === null) return [pointer];
  // Rows not converted to a table yet: each is a name and a value.
  if (Array.isArray(value) && value.every(isRow)) {
    return nullsIn(Object.fromEntries(value.filter(([, inner]) => inner === null)), pointer);
  }
  if (!isObject(value)) return [];
  return Object.entries(value).flatMap(([name, inner]) =>
    nullsIn(inner, `${pointer}/${escaped(name)}`),
  );
}

function isRow(value: Json): value is [string, Json] {
  return Array.isArray(value) && value.length === 2 && typeof value[0] === "string";
}

const MASK = "********";

/** Whether a value or a part of it is hidden. */
function hasHidden(value: Json): boolean {
  if (Array.isArray(value)) return value.some(hasHidden);
  return isObject(value) ? Object.values(value).some(hasHidden) : isHidden(value);
}

/** Whether the server masks the value, or the browser cannot represent its number exactly. */
function isHidden(value: Json): boolean {
  if (typeof value === "number") return Number.isInteger(value) && !Number.isSafeInteger(value);
  return typeof value === "string" && (value === MASK || value.includes(`://${MASK}@`));
}

/** `/retry/on/0`, `/retry/on`, `/retry` */
export function ancestors(pointer: string): string[] {
  const keys = pointer.split("/").slice(1);
  return keys.map((_, index) => `/${keys.slice(0, keys.length - index).join("/")}`);
}

/** `program.arguments.lr` for `/program/arguments/lr`. */
export function dotted(pointer: string): string {
  return keysOf(pointer).join(".");
}

export function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function keysOf(pointer: string): string[] {
  return pointer
    .split("/")
    .slice(1)
    .map((key) => key.replaceAll("~1", "/").replaceAll("~0", "~"));
}

export function escaped(key: string): string {
  return key.replaceAll("~", "~0").replaceAll("/", "~1");
}
