// The form: one group for each section of the spec; common sections are open.

import { useCallback, useDeferredValue, useMemo, useState } from "react";
import { isObject, type Json, type JsonObject } from "@/shared/format/document";
import { EmptyState } from "@/shared/ui/Notice";
import { SUBMIT } from "@/shared/url/pages";
import { usePageParams } from "@/shared/url/params";
import type { PlacedProblems } from "../problems";
import type { FormField, FormSection } from "../schema";
import { withField } from "../spec";
import { KindChoice } from "./KindChoice";
import { SectionGroup } from "./SectionGroup";

/** Changes the latest draft, so that the function itself never changes. */
export type Edit = (change: (spec: JsonObject) => JsonObject) => void;

interface SpecFormProps {
  sections: FormSection[];
  spec: JsonObject;
  onKind: () => void;
  problems: PlacedProblems;
  warnings: PlacedProblems;
  edit: Edit;
}

export function SpecForm(props: SpecFormProps) {
  const { sections, spec, onKind, problems, warnings, edit } = props;
  const [{ find }] = usePageParams(SUBMIT);
  const [wanted, setWanted] = useState(find ?? "");
  const searched = useDeferredValue(wanted.trim().toLowerCase());
  const shown = useMemo(() => found(sections, searched), [sections, searched]);
  const setField = useCallback(
    (field: FormField, value: Json) => edit((before) => withField(before, field, value)),
    [edit],
  );
  return (
    <div className="spec-form stack">
      <KindChoice hasProgram={isObject(spec.program)} onChange={onKind} />
      <div className="toolbar">
        <input
          className="input spec-find"
          type="search"
          placeholder="Find a field, such as grad_norm or retry"
          aria-label="Find a field by its name or its help"
          value={wanted}
          onChange={(event) => setWanted(event.target.value)}
        />
        <span className="muted">Grey values are the defaults.</span>
      </div>
      {shown.map((section) => (
        <SectionGroup
          key={section.name}
          section={section}
          spec={spec}
          problems={problems}
          warnings={warnings}
          isSearch={searched !== ""}
          onField={setField}
        />
      ))}
      {shown.length === 0 && <EmptyState title="No field matches" />}
    </div>
  );
}

function found(sections: FormSection[], text: string): FormSection[] {
  if (text === "") return sections;
  return sections
    .map((section) => ({
      ...section,
      fields: section.fields.filter(({ pointer, help }) =>
        `${pointer.slice(1).replaceAll("/", ".")} ${help}`.toLowerCase().includes(text),
      ),
    }))
    .filter((section) => section.fields.length > 0);
}
