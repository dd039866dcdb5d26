// The submit form as data, derived from the JSON Schema of the job spec.
import { escaped, type Json } from "@/shared/format/document";

/** How a value is entered. */
export type Control =
  | { kind: "switch" }
  | { kind: "choice"; options: (string | boolean)[] }
  | { kind: "number" }
  /** Free text, optionally with suggestions. */
  | { kind: "text"; suggestions: string[]; isLong: boolean }
  /** One of some words, or a number. */
  | { kind: "word-or-number"; suggestions: string[] }
  /** Several of some words. */
  | { kind: "choices"; options: string[] }
  /** Words: of a list, or of a command in one line. */
  | { kind: "words"; isCommand: boolean }
  /** Names and their values. */
  | ({ kind: "pairs" } & Pairs)
  /** Anything else, as JSON. */
  | { kind: "json" };

export interface Pairs {
  /** Suggested names. */
  names: string[];
  /** Whether each value is text; else it may be a number, a boolean or a list too. */
  isText: boolean;
  /** Whether views mask the values of all other names. */
  isMasked: boolean;
}

export interface FormField {
  /** JSON pointer, as in refusals of the server. */
  pointer: string;
  name: string;
  help: string;
  unit: string | null;
  default: Json;
  /** Whether the value may be absent (null). */
  isNullable: boolean;
  /** Whether the section is illegal without this field. */
  isRequired: boolean;
  control: Control;
}

export interface FormSection {
  /** Dotted name in the spec; empty for the fields of the job itself. */
  name: string;
  help: string;
  fields: FormField[];
}

/** The part of JSON Schema that the form uses. */
interface Schema {
  type?: string;
  enum?: Json[];
  const?: Json;
  anyOf?: Schema[];
  oneOf?: Schema[];
  $ref?: string;
  $defs?: Record<string, Schema>;
  properties?: Record<string, Schema>;
  additionalProperties?: Schema | boolean;
  patternProperties?: Record<string, Schema>;
  propertyNames?: Schema;
  items?: Schema;
  required?: string[];
  of_the_trainer?: string[];
  command_line?: boolean;
  masked?: boolean;
  default?: Json;
  description?: string;
  examples?: Json[];
  maxLength?: number;
  unit?: string;
}

/** A text of at least this many characters gets several lines. */
const LONG_TEXT = 1000;

/** Return the sections of a form for a job spec: the job's own fields, then each section. */
export function formOf(document: unknown): FormSection[] {
  const schema = document as Schema;
  const definitions = schema.$defs ?? {};
  const own: FormSection = { name: "", help: "Name and labels.", fields: [] };
  const sections = [own];
  for (const [name, property] of Object.entries(schema.properties ?? {})) {
    const found = sectionsOf(name, property, definitions);
    sections.push(...found);
    if (found.length === 0)
      own.fields.push(fieldOf(`/${escaped(name)}`, name, property, definitions));
  }
  return sections;
}

/** Return the JSON pointers that only the built-in trainer has. */
export function trainerPointers(document: unknown): string[] {
  return (document as Schema).of_the_trainer ?? [];
}

/** Return the variables with unmasked values. */
export function shownNames(sections: readonly FormSection[]): ReadonlySet<string> {
  const controls = sections.flatMap(({ fields }) => fields.map(({ control }) => control));
  return new Set(
    controls.flatMap((each) => (each.kind === "pairs" && each.isMasked ? each.names : [])),
  );
}

/** Return the possible sections of a draft: those of a program, or of the built-in trainer. */
export function sectionsFor(
  sections: readonly FormSection[],
  ofTrainer: readonly string[],
  hasProgram: boolean,
): FormSection[] {
  if (!hasProgram) return sections.filter((section) => !isWithin(pointerOf(section), PROGRAM));
  const without = sections.map((section) => ({
    ...section,
    fields: section.fields.filter(
      ({ pointer }) => !ofTrainer.some((outer) => isWithin(pointer, outer)),
    ),
  }));
  return without.filter(({ fields }) => fields.length > 0);
}

const PROGRAM = "/program";

function isWithin(pointer: string, outer: string): boolean {
  return pointer === outer || pointer.startsWith(`${outer}/`);
}

/** Return the pointer of a section. */
export function pointerOf({ name }: FormSection): string {
  return name === "" ? "" : `/${name.replaceAll(".", "/")}`;
}

/** Return a section and its nested sections, each with its plain fields; empty for any other field. */
function sectionsOf(
  name: string,
  property: Schema,
  definitions: Record<string, Schema>,
): FormSection[] {
  const resolved = [property, ...(property.anyOf ?? [])]
    .map((kind) => resolve(kind, definitions))
    .find((kind) => kind.properties);
  if (!resolved) return [];
  const fields: FormField[] = [];
  const inner: FormSection[] = [];
  for (const [field, schema] of Object.entries(resolved.properties ?? {})) {
    const found = sectionsOf(`${name}.${field}`, schema, definitions);
    inner.push(...found);
    if (found.length > 0) continue;
    const pointer = `/${`${name}.${field}`.replaceAll(".", "/")}`;
    const isRequired = resolved.required?.includes(field) ?? false;
    fields.push({ ...fieldOf(pointer, field, schema, definitions), isRequired });
  }
  // The field of an optional section describes its absence and the section itself.
  const texts = [property.description, resolved.description];
  const help = oneLine((property.anyOf ? texts.reverse() : texts).find(Boolean) ?? "");
  return [{ name, help, fields }, ...inner];
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
    isRequired: false,
    control: controlOf(values, definitions),
  };
}

/** Return the empty default of a field that has none in the schema, such as a list. */
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
      return listControl(schema, resolve(schema.items ?? {}, definitions));
    case "object":
      return tableControl(schema);
    default:
      return { kind: "json" };
  }
}

function listControl(schema: Schema, items: Schema): Control {
  const options = optionsOf(items);
  if (options.length > 0) return { kind: "choices", options };
  if (items.type !== "string") return { kind: "json" };
  return { kind: "words", isCommand: schema.command_line === true };
}

function tableControl(schema: Schema): Control {
  const values = Object.values(schema.patternProperties ?? {})[0] ?? schema.additionalProperties;
  if (typeof values !== "object") return { kind: "json" };
  return {
    kind: "pairs",
    names: (schema.propertyNames?.examples ?? []).map(String),
    // Values of env are texts, or references to secrets.
    isText: (values.oneOf?.[0] ?? values).type === "string",
    isMasked: schema.masked === true,
  };
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

function oneLine(text: string): string {
  return text.replaceAll(/\s+/g, " ").trim();
}
