// The place of each problem from the server: at its field, at its section, or above the form.
import type { Problem } from "@/shared/api/types";
import { ancestors } from "@/shared/format/document";
import { type FormSection, pointerOf } from "./schema";

export interface PlacedProblems {
  /** Texts by the pointer of the field. */
  byField: ReadonlyMap<string, readonly string[]>;
  /** Texts by name of section, for problems of several of its fields. */
  bySection: ReadonlyMap<string, readonly string[]>;
  /** Problems without a field of the form, with their pointers. */
  elsewhere: readonly Problem[];
}

/** Assign each problem to the nearest field or section of its pointer. */
export function placeProblems(
  problems: readonly Problem[],
  sections: readonly FormSection[],
): PlacedProblems {
  const fields = new Set(sections.flatMap((section) => section.fields.map((f) => f.pointer)));
  const names = new Map(sections.map((section) => [pointerOf(section), section.name]));
  names.delete("");
  const byField = new Map<string, string[]>();
  const bySection = new Map<string, string[]>();
  const elsewhere: Problem[] = [];
  for (const problem of problems) {
    const field = ancestors(problem.pointer).find((pointer) => fields.has(pointer));
    const section = ancestors(problem.pointer).find((pointer) => names.has(pointer));
    if (field !== undefined) add(byField, field, problem.detail);
    else if (section !== undefined) add(bySection, names.get(section) ?? "", problem.detail);
    else elsewhere.push(problem);
  }
  return { byField, bySection, elsewhere };
}

/** Return the number of problems of a section and its fields. */
export function problemsIn(section: FormSection, placed: PlacedProblems): number {
  const own = placed.bySection.get(section.name)?.length ?? 0;
  return section.fields.reduce(
    (sum, field) => sum + (placed.byField.get(field.pointer)?.length ?? 0),
    own,
  );
}

function add(map: Map<string, string[]>, key: string, text: string): void {
  map.set(key, [...(map.get(key) ?? []), text]);
}
