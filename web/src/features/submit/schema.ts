// The submit form as data, drawn from the JSON Schema of the job spec.
import type { Json } from "@/shared/format/document";
import { OF_THE_TRAINER } from "@/shared/format/spec";

/** How a value is entered. */
export type Control =
  | { kind: "switch" }
  | { kind: "choice"; options: (string | boolean)[] }
  | { kind: "number" }
  /** Free text, perhaps with values to choose from. */
  | { kind: "text"; suggestions: string[]; isLong: boolean }
  /** One of some words, or a number. */
  | { kind: "word-or-number"; suggestions: string[] }
  /** Several of some words. */
  | { kind: "choices"; options: string[] }
  /** Words, one after the other. */
  | { kind: "words" }
  /** Names and their values. */
  | { kind: "pairs" }
  /** Anything else, as JSON. */
  | { kind: "json" };

export interface FormField {
  /** JSON pointer, as the server names it in a refusal. */
  pointer: string;
  name: string;
  help: string;
  unit: string | null;
  default: Json;
  /** Whether the value may be absent (null). */
  isNullable: boolean;
  control: Control;
}

export interface FormSection {
  /** Name in the spec; empty for the fields of the job itself. */
  name: string;
  help: string;
  fields: FormField[];
}

/** What is read of a JSON Schema. */
interface Schema {
  type?: string;
  enum?: Json[];
  const?: Json;
  anyOf?: Schema[];
  $ref?: string;
  $defs?: Record<string, Schema>;
  properties?: Record<string, Schema>;
  additionalProperties?: Schema | boolean;
  items?: Schema;
  default?: Json;
  description?: string;
  examples?: Json[];
  maxLength?: number;
  unit?: string;
}

/** From so many characters on a text gets several lines. */
const LONG_TEXT = 1000;

/** Return the sections of a form for a job spec: the job's own fields, then each section. */
export function formOf(document: unknown): FormSection[] {
  const schema = document as Schema;
  const definitions = schema.$defs ?? {};
  const own: FormSection = { name: "", help: "Name and labels.", fields: [] };
  const sections = [own];
  for (const [name, property] of Object.entries(schema.properties ?? {})) {
    const resolved = resolve(property, definitions);
    if (resolved.properties) sections.push(sectionOf(name, property, resolved, definitions));
    else own.fields.push(fieldOf(`/${escaped(name)}`, name, property, definitions));
  }
  return sections;
}

/** Return what a draft may hold: a program, or the sections of the built-in trainer. */
export function sectionsFor(sections: FormSection[], hasProgram: boolean): FormSection[] {
  if (hasProgram) return sections.filter(({ name }) => !OF_THE_TRAINER.has(name));
  return sections.map((section) =>
    section.name === ""
      ? { ...section, fields: section.fields.filter(({ name }) => name !== "program") }
      : section,
  );
}

function sectionOf(
  name: string,
  property: Schema,
  resolved: Schema,
  definitions: Record<string, Schema>,
): FormSection {
  const fields = Object.entries(resolved.properties ?? {}).map(([field, schema]) =>
    fieldOf(`/${escaped(name)}/${escaped(field)}`, field, schema, definitions),
  );
  return { name, help: oneLine(property.description ?? resolved.description ?? ""), fields };
}

function fieldOf(
  pointer: string,
  name: string,
  property: Schema,
  definitions: Record<string, Schema>,
): FormField {
  const kinds = (property.anyOf ?? [property]).map((kind) => resolve(kind, definitions));
  const values = kinds.filter((kind) => kind.type !== "null");
  return {
    pointer,
    name,
    help: oneLine(property.description ?? ""),
    unit: [property, ...values].find((kind) => kind.unit !== undefined)?.unit ?? null,
    default: property.default ?? emptyOf(values),
    isNullable: values.length < kinds.length,
    control: controlOf(values, definitions),
  };
}

/** A field without a default in the schema has one that is made anew each time: an empty one. */
function emptyOf(values: readonly Schema[]): Json {
  const type = values[0]?.type;
  if (type === "object") return {};
  return type === "array" ? [] : null;
}

function controlOf(values: readonly Schema[], definitions: Record<string, Schema>): Control {
  const [only] = values;
  if (values.length === 1 && only) return controlOfOne(only, definitions);
  const words = values.flatMap(optionsOf);
  const hasNumber = values.some(isNumber);
  if (words.length > 0 && hasNumber) return { kind: "word-or-number", suggestions: words };
  const isSwitch = values.every((kind) => kind.type === "boolean" || optionsOf(kind).length > 0);
  if (words.length > 0 && isSwitch) return { kind: "choice", options: [...words, true, false] };
  return { kind: "json" };
}

function controlOfOne(schema: Schema, definitions: Record<string, Schema>): Control {
  const options = optionsOf(schema);
  if (options.length > 0) return { kind: "choice", options };
  if (isNumber(schema)) return { kind: "number" };
  switch (schema.type) {
    case "boolean":
      return { kind: "switch" };
    case "string":
      return {
        kind: "text",
        suggestions: (schema.examples ?? []).map(String),
        isLong: (schema.maxLength ?? 0) > LONG_TEXT,
      };
    case "array":
      return listControl(resolve(schema.items ?? {}, definitions));
    case "object":
      return typeof schema.additionalProperties === "object" ? { kind: "pairs" } : { kind: "json" };
    default:
      return { kind: "json" };
  }
}

function listControl(items: Schema): Control {
  const options = optionsOf(items);
  if (options.length > 0) return { kind: "choices", options };
  return items.type === "string" ? { kind: "words" } : { kind: "json" };
}

function optionsOf(schema: Schema): string[] {
  const values = schema.enum ?? (schema.const === undefined ? [] : [schema.const]);
  return values.map(String);
}

function isNumber(schema: Schema): boolean {
  return schema.type === "integer" || schema.type === "number";
}

function resolve(schema: Schema, definitions: Record<string, Schema>): Schema {
  const name = schema.$ref?.split("/").at(-1);
  return name === undefined ? schema : { ...definitions[name], ...schema };
}

function escaped(name: string): string {
  return name.replaceAll("~", "~0").replaceAll("/", "~1");
}

function oneLine(text: string): string {
  return text.replaceAll(/\s+/g, " ").trim();
}
