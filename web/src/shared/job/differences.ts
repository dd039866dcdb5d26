// A spec as flat fields, with what an attempt changes, and what two of them differ in. Pure.
import type { Job } from "@/shared/api/types";

export type Spec = Job["spec"];
export type Overrides = NonNullable<Job["current_attempt"]>["overrides"];

const SECTIONS = [
  "parallelism",
  "activation_checkpoint",
  "compile",
  "checkpoint",
  "resources",
  "retry",
] as const;

/** The spec as an attempt ran it: whole sections are replaced, and two numbers of training. */
export function effectiveSpec(spec: Spec, overrides: Overrides): Spec {
  const sections = Object.fromEntries(
    SECTIONS.filter((name) => overrides[name] !== null).map((name) => [name, overrides[name]]),
  );
  return {
    ...spec,
    ...sections,
    training: {
      ...spec.training,
      micro_batch_size: overrides.micro_batch_size ?? spec.training.micro_batch_size,
      steps: overrides.steps ?? spec.training.steps,
    },
  };
}

/** `training.steps` and its value as text. */
export type Field = readonly [name: string, value: string];

/** Return the leaves of a document in order; lists and empty objects are leaves. */
export function fieldsOf(document: object, prefix = ""): Field[] {
  return Object.entries(document).flatMap(([name, value]): Field[] => {
    const path = prefix + name;
    const isSection = typeof value === "object" && value !== null && !Array.isArray(value);
    if (isSection && Object.keys(value).length > 0) return fieldsOf(value, `${path}.`);
    return [[path, valueText(value)]];
  });
}

export function valueText(value: unknown): string {
  if (value === null || value === undefined) return "–";
  if (Array.isArray(value)) return value.length === 0 ? "none" : value.map(valueText).join(", ");
  if (typeof value === "object")
    return Object.keys(value).length === 0 ? "none" : JSON.stringify(value);
  return value === "" ? "–" : String(value);
}

export interface Difference {
  field: string;
  before: string;
  after: string;
}

/** Return the fields in which two documents differ, those of either included. */
export function differences(before: object, after: object): Difference[] {
  const [left, right] = [new Map(fieldsOf(before)), new Map(fieldsOf(after))];
  const names = [...new Set([...left.keys(), ...right.keys()])];
  return names
    .map((field) => ({ field, before: left.get(field) ?? "–", after: right.get(field) ?? "–" }))
    .filter((change) => change.before !== change.after);
}
