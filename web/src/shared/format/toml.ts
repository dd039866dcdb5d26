// A spec as TOML, the format of the command line's spec files.
import { parse, stringify, TomlError } from "smol-toml";
import { dotted, isObject, type Json, type JsonObject, nullsIn, type SparseSpec } from "./document";

export interface ReadSpec {
  spec: JsonObject | null;
  /** Why the text is no spec, with the line or the path of a value. */
  error: string | null;
}

/** Return a spec as the text of a TOML file; TOML has no null, so nulls are omitted. */
export function specToml(spec: JsonObject, notes: readonly string[] = []): string {
  const comments = notes.map((note) => `# ${note.replaceAll(/\s+/g, " ")}\n`).join("");
  return comments + stringify(withoutNulls(spec)).trimStart();
}

/** Return a job's spec as the text of a TOML file; comments name the omitted values. */
export function sparseToml({ spec, hidden }: SparseSpec): string {
  return specToml(spec, [...hidden.map(hiddenNote), ...nullsIn(spec).map(nullNote)]);
}

/** The comment on a hidden value. */
export function hiddenNote(pointer: string): string {
  return `${dotted(pointer)} is not shown here: enter it again, or leave it out.`;
}

/** The comment on a null that is not the default. */
export function nullNote(pointer: string): string {
  return `${dotted(pointer)} is null, which TOML cannot express: this text has its default.`;
}

/** Return the spec in a text: TOML, or JSON if it begins with a brace. */
export function readSpecText(text: string): ReadSpec {
  const plain = text.replace(/^\uFEFF/, "");
  try {
    if (isJson(plain)) return { spec: asJson(parsedJson(plain), []) as JsonObject, error: null };
    // Integers stay integers: `1.0` is a float, which JSON would write as `1`.
    return {
      spec: asJson(parse(plain, { integersAsBigInt: true }), []) as JsonObject,
      error: null,
    };
  } catch (error) {
    return { spec: null, error: positioned(error) };
  }
}

// A string followed by a colon is a name.
const JSON_TOKEN = /"(?:[^"\\]|\\.)*"(?:\s*:)?|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?/g;

/** Parse JSON, distinguishing integers from floats: JSON.parse reads `1.0` as `1`. */
function parsedJson(text: string): unknown {
  JSON.parse(text); // its errors give the place in the original text
  // Every string gets a prefix, so that none can pass for a number.
  const marked = text.replace(JSON_TOKEN, (token) => {
    if (token.startsWith('"')) return token.endsWith(":") ? token : `"t${token.slice(1)}`;
    return /[.eE]/.test(token) ? token : `"n${token}"`;
  });
  return JSON.parse(marked, (_, value) => (typeof value === "string" ? unmarked(value) : value));
}

function unmarked(marked: string): string | bigint {
  const rest = marked.slice(1);
  return marked.startsWith("n") ? BigInt(rest) : rest;
}

/** Whether a text is that of a JSON file. */
export function isJson(text: string): boolean {
  return text.trimStart().startsWith("{");
}

/** Return a table without its nulls, and without the rows of lists that have one. */
function withoutNulls(value: JsonObject): JsonObject {
  const entries = Object.entries(value).filter(([, inner]) => inner !== null);
  return Object.fromEntries(entries.map(([name, inner]) => [name, withoutNullsIn(inner)]));
}

function withoutNullsIn(value: Json): Json {
  if (isObject(value)) return withoutNulls(value);
  if (!Array.isArray(value)) return value;
  const hasNull = (item: Json) => item === null || (Array.isArray(item) && item.includes(null));
  return value.filter((item) => !hasNull(item)).map(withoutNullsIn);
}

function positioned(error: unknown): string {
  if (!(error instanceof TomlError)) return error instanceof Error ? error.message : String(error);
  const [first = ""] = error.message.split("\n");
  const reason = first.replace("Invalid TOML document: ", "");
  return `Line ${error.line}, column ${error.column}: ${reason}`;
}

/** Convert a TOML value to JSON; throw an error with the path of a value that a spec cannot have. */
function asJson(value: unknown, path: readonly string[]): Json {
  const name = path.join(".");
  if (typeof value === "bigint") return exact(value, name);
  if (typeof value === "number") return finite(value, name, path.includes("arguments"));
  if (typeof value !== "object" || value === null) return value as Json; // a text, or a boolean
  if (value instanceof Date) throw new Error(`${name} is a date; write it in quotes, as a text.`);
  if (Array.isArray(value)) {
    return value.map((item, index) => asJson(item, [...path, String(index)]));
  }
  const entries = Object.entries(value);
  return Object.fromEntries(entries.map(([key, inner]) => [key, asJson(inner, [...path, key])]));
}

function exact(value: bigint, name: string): number {
  if (Number.isSafeInteger(Number(value))) return Number(value);
  throw new Error(
    `${name} = ${value}: whole numbers beyond 2^53 are not exact in a browser. Submit the file with trainyard submit.`,
  );
}

/** Return a float; spec fields have a type, `arguments` (`isFree`) accept any. */
function finite(value: number, name: string, isFree: boolean): number {
  if (!Number.isFinite(value)) {
    throw new Error(`${name} is ${written(value)}; legal: a finite number.`);
  }
  // From 1e21, JSON has an exponent: the number remains a float.
  if (isFree && Number.isInteger(value) && Math.abs(value) < 1e21) {
    throw new Error(`${name} would become ${value}: write it without a point, or in quotes.`);
  }
  return value;
}

function written(value: number): string {
  return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
}
