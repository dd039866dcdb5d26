// One section of the spec: a collapsible group, which opens for problems in it.

import { useState } from "react";
import { type Json, type JsonObject, valueAt } from "@/shared/format/document";
import { plural } from "@/shared/format/numbers";
import { Badge } from "@/shared/ui/Badge";
import { Button } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { type PlacedProblems, problemsIn } from "../problems";
import type { FormField, FormSection } from "../schema";
import { isCommon } from "./common";
import { FieldRow, Help } from "./FieldRow";

interface SectionGroupProps {
  section: FormSection;
  spec: JsonObject;
  problems: PlacedProblems;
  warnings: PlacedProblems;
  /** Whether the section holds only search results, which are all shown. */
  isSearch: boolean;
  onField: (field: FormField, value: Json) => void;
}

export function SectionGroup(props: SectionGroupProps) {
  const { section, spec, problems, isSearch } = props;
  const [isOpen, setIsOpen] = useState(section.fields.some(isCommon));
  const wrong = problemsIn(section, problems);
  const changed = section.fields.filter((field) => isChanged(spec, field)).length;
  const title = section.name || "job";
  return (
    <details
      className="section panel"
      open={isOpen || isSearch || wrong > 0}
      onToggle={(event) => {
        // A group opened by a search or a problem closes again afterwards.
        if (!isSearch && wrong === 0) setIsOpen(event.currentTarget.open);
      }}
    >
      <summary className="section-title row">
        <h2>{title}</h2>
        <span className="section-help ellipsis">
          <Help text={section.help} />
        </span>
        {changed > 0 && <Badge tone="accent">{changed} set</Badge>}
        {wrong > 0 && <Badge tone="bad">{plural(wrong, "problem")}</Badge>}
      </summary>
      {problems.bySection.get(section.name)?.map((text) => (
        <p key={text} className="field-error section-error" role="alert">
          {text}
        </p>
      ))}
      <Fields {...props} />
      {section.name === "program.code" && <PackNote />}
    </details>
  );
}

/** A hint to pack a folder by command line, because a browser cannot read one. */
function PackNote() {
  return (
    <div className="section-note">
      <p>
        To pack a folder of your machine, write <code>local = "."</code> below{" "}
        <code>[program.code]</code> of <code>job.toml</code>, the text of this job as TOML, and
        submit that file:
      </p>
      <CommandLine command="trainyard submit job.toml" label="Packs the folder and submits" />
    </div>
  );
}

function Fields({ section, spec, problems, warnings, isSearch, onField }: SectionGroupProps) {
  const [isWhole, setIsWhole] = useState(false);
  const isAllShown = isWhole || isSearch || !section.fields.some(isCommon);
  const shown = section.fields.filter(
    (field) =>
      isAllShown ||
      isCommon(field) ||
      isChanged(spec, field) ||
      problems.byField.has(field.pointer),
  );
  const hidden = section.fields.length - shown.length;
  return (
    <>
      <div className="section-fields">
        {shown.map((field) => (
          <FieldRow
            key={field.pointer}
            field={field}
            value={valueAt(spec, field.pointer)}
            errors={problems.byField.get(field.pointer)}
            warnings={warnings.byField.get(field.pointer)}
            onChange={onField}
          />
        ))}
      </div>
      {(hidden > 0 || isWhole) && (
        <Button look="quiet" small className="section-more" onClick={() => setIsWhole(!isWhole)}>
          {hidden > 0 ? `${plural(hidden, "more field")}` : "Fewer fields"}
        </Button>
      )}
    </>
  );
}

function isChanged(spec: JsonObject, field: FormField): boolean {
  return valueAt(spec, field.pointer) !== undefined;
}
