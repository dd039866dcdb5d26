// Where each problem that the server found is shown: at its field, its section, or above the form.
import type { Problem } from "@/shared/api/types";
import { ancestors } from "@/shared/format/document";
import { type FormSection, pointerOf } from "./schema";

export interface PlacedProblems {
  /** Texts by the pointer of the field. */
  byField: ReadonlyMap<string, readonly string[]>;
  /** Texts by the name of the section, for what concerns several of its fields. */
  bySection: ReadonlyMap<string, readonly string[]>;
  /** What belongs to no field of the form, with its pointer. */
  elsewhere: readonly Problem[];
}

/** Put each problem to the nearest thing of the form that its pointer names. */
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

/** Return how many problems a section has, those of its fields included. */
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
