// A spec as TOML, which spec files of the command line are written in.
import { parse, stringify, TomlError } from "smol-toml";
import {
  dotted,
  isObject,
  type JsonObject,
  nullsIn,
  parsedSpec,
  type SparseSpec,
} from "./document";

export interface ReadSpec {
  spec: JsonObject | null;
  /** Why the text holds none, with its line. */
  error: string | null;
}

/** Return a spec as the text of a TOML file; TOML has no null, so an absent value is left out. */
export function specToml(spec: JsonObject, notes: readonly string[] = []): string {
  const comments = notes.map((note) => `# ${note.replaceAll(/\s+/g, " ")}\n`).join("");
  return comments + stringify(withoutNulls(spec));
}

/** Return the spec of a job as the text of a TOML file; comments name what the job has besides. */
export function sparseToml({ spec, hidden }: SparseSpec): string {
  return specToml(spec, [...hidden.map(hiddenNote), ...nullsIn(spec).map(nullNote)]);
}

/** The comment on a value that is not shown. */
export function hiddenNote(pointer: string): string {
  return `${dotted(pointer)} is not shown here: enter it again, or leave it out.`;
}

/** The comment on a null that stands for no default. */
export function nullNote(pointer: string): string {
  return `${dotted(pointer)} is null, which TOML cannot express: this text has its default.`;
}

/** Return the spec in a text: TOML, or JSON, which begins with a brace as no TOML does. */
export function readSpecText(text: string): ReadSpec {
  const plain = text.replace(/^\uFEFF/, "");
  if (isJson(plain)) return parsedSpec(plain);
  try {
    const document = parse(plain);
    const refused = refusedIn(document, []);
    if (refused === null) return { spec: document as JsonObject, error: null };
    return { spec: null, error: `Line ${lineOf(plain, refused.path)}: ${refused.why}` };
  } catch (error) {
    return { spec: null, error: positioned(error) };
  }
}

/** Whether a text is that of a JSON file. */
export function isJson(text: string): boolean {
  return text.trimStart().startsWith("{");
}

function withoutNulls(value: JsonObject): JsonObject {
  const entries = Object.entries(value).filter(([, inner]) => inner !== null);
  return Object.fromEntries(
    entries.map(([name, inner]) => [name, isObject(inner) ? withoutNulls(inner) : inner]),
  );
}

function positioned(error: unknown): string {
  if (!(error instanceof TomlError)) return error instanceof Error ? error.message : String(error);
  const [first = ""] = error.message.split("\n");
  const reason = first.replace("Invalid TOML document: ", "");
  if (reason.includes("losslessly")) {
    const place = `Line ${error.line}, column ${error.column}`;
    return `${place}: whole numbers beyond 2^53 are not exact in a browser. Submit the file with trainyard submit.`;
  }
  return `Line ${error.line}, column ${error.column}: ${reason}`;
}

interface Refused {
  path: readonly string[];
  why: string;
}

/** Return the first value that TOML has and a spec has not. */
function refusedIn(value: unknown, path: readonly string[]): Refused | null {
  const name = path.join(".");
  if (value instanceof Date) {
    return { path, why: `${name} is a date; write it in quotes, as a text.` };
  }
  if (typeof value === "number" && !Number.isFinite(value)) {
    return { path, why: `${name} is ${written(value)}; legal: a finite number.` };
  }
  if (typeof value !== "object" || value === null) return null;
  for (const [key, inner] of Object.entries(value)) {
    const found = refusedIn(inner, [...path, key]);
    if (found) return found;
  }
  return null;
}

function written(value: number): string {
  return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

const MOST_LINES = 2000;

/** Return the line with which a value is complete: the parser keeps no places of values. */
function lineOf(text: string, path: readonly string[]): number {
  const lines = text.split("\n").slice(0, MOST_LINES);
  return 1 + lines.findIndex((_, index) => holds(lines.slice(0, index + 1).join("\n"), path));
}

function holds(text: string, path: readonly string[]): boolean {
  try {
    let value: unknown = parse(text);
    for (const key of path) {
      if (typeof value !== "object" || value === null) return false;
      value = (value as Record<string, unknown>)[key];
    }
    return value !== undefined;
  } catch {
    return false;
  }
}
