// A spec as it is written: a JSON document that holds only what differs from the defaults.

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type JsonObject = { [key: string]: Json };

/** Return the spec that a text holds, or why it holds none. */
export function parsedSpec(text: string): { spec: JsonObject | null; error: string | null } {
  try {
    const value = JSON.parse(text);
    if (isObject(value)) return { spec: value, error: null };
    return { spec: null, error: "A spec is an object: { … }" };
  } catch (error) {
    return { spec: null, error: error instanceof Error ? error.message : String(error) };
  }
}

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

export function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
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
