// Edits of the draft.
import { includes } from "@/shared/api/barriers";
import type { Project, RankedLayout } from "@/shared/api/types";
import {
  ancestors,
  isObject,
  type Json,
  type JsonObject,
  withValue,
} from "@/shared/format/document";
import type { FormField, FormSection } from "./schema";

/** Return the document with a field set; its default is omitted, unless the field is required. */
export function withField(spec: JsonObject, field: FormField, value: Json): JsonObject {
  const isLeftOut = !field.isRequired && isEqual(value, field.default);
  const changed = withValue(spec, field.pointer, isLeftOut ? undefined : value);
  // A program without any field stays a program.
  return isObject(spec.program) && !changed.program ? { ...changed, program: {} } : changed;
}

/** Project of a spec that names none. */
export const DEFAULT_PROJECT = "default";

/** Return the project of a new job: the default one, or the first one in which the caller may submit. */
export function homeProject(projects: readonly Project[]): string {
  const own = projects.filter(({ role }) => includes(role, "member")).map(({ name }) => name);
  return own.includes(DEFAULT_PROJECT) ? DEFAULT_PROJECT : (own[0] ?? DEFAULT_PROJECT);
}

/** Return the name of a spec's project. */
export function projectOf({ project }: JsonObject): string {
  return typeof project === "string" && project !== "" ? project : DEFAULT_PROJECT;
}

/** Return the document with its names in the order of the form; unknown names come last. */
export function inOrder(spec: JsonObject, sections: readonly FormSection[]): JsonObject {
  const pointers = sections.flatMap(({ fields }) => fields.map(({ pointer }) => pointer));
  const places = new Map<string, number>();
  for (const pointer of pointers) {
    for (const outer of ancestors(pointer)) {
      if (!places.has(outer)) places.set(outer, places.size);
    }
  }
  return ordered(spec, "", places);
}

function ordered(value: JsonObject, pointer: string, places: Map<string, number>): JsonObject {
  const place = (name: string) => places.get(`${pointer}/${name}`) ?? places.size;
  const names = Object.keys(value).sort((one, other) => place(one) - place(other));
  return Object.fromEntries(
    names.map((name) => {
      const inner = value[name] ?? null;
      return [name, isObject(inner) ? ordered(inner, `${pointer}/${name}`, places) : inner];
    }),
  );
}

/**
 * Return the document with another layout; `dp_shard` fills its slots, and choices for other sizes are
 * removed.
 *
 * The micro-batch size is set if the layout needs one that differs from `planned`.
 */
export function withLayout(spec: JsonObject, option: RankedLayout, planned: number): JsonObject {
  let changed = spec;
  for (const field of option.resets) {
    changed = withValue(changed, `/parallelism/${field}`, undefined);
  }
  for (const [axis, size] of Object.entries(option.layout)) {
    const isDefault = axis === "dp_shard" || size === 1;
    changed = withValue(changed, `/parallelism/${axis}`, isDefault ? undefined : size);
  }
  const needed = option.batch?.micro_batch_size ?? planned;
  if (needed === planned) return changed;
  return withValue(changed, "/training/micro_batch_size", needed);
}

const NUMBER = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i;

/** Return the typed number; any other text is returned unchanged, and the server rejects it. */
export function numberTyped(text: string): number | string {
  const plain = text.replaceAll(/[\s_]/g, "");
  const number = Number(plain);
  // Beyond 2^53 a number would silently change.
  const isExact = !Number.isInteger(number) || Number.isSafeInteger(number);
  return NUMBER.test(plain) && isExact ? number : text.trim();
}

/** Return whether two values are the same JSON. */
export function isEqual(one: Json, other: Json): boolean {
  return JSON.stringify(sorted(one)) === JSON.stringify(sorted(other));
}

function sorted(value: Json): Json {
  if (Array.isArray(value)) return value.map(sorted);
  if (!isObject(value)) return value;
  const entries = Object.entries(value).map(([key, item]) => [key, sorted(item)] as const);
  return Object.fromEntries(entries.sort(([a], [b]) => (a < b ? -1 : 1)));
}
