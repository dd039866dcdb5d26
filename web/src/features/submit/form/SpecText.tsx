// The spec as TOML, to read, edit, paste and download.
import { useState } from "react";
import { type JsonObject, nullsIn } from "@/shared/format/document";
import { hiddenNote, isJson, nullNote, readSpecText, specToml } from "@/shared/format/toml";
import { ButtonLink } from "@/shared/ui/Button";
import { CopyButton } from "@/shared/ui/CommandLine";
import type { FormSection } from "../schema";
import { inOrder, isEqual } from "../spec";
import type { Edit } from "./SpecForm";

interface SpecTextProps {
  sections: readonly FormSection[];
  spec: JsonObject;
  /** Pointers of hidden values. */
  hidden: readonly string[];
  edit: Edit;
}

export function SpecText({ sections, spec, hidden, edit }: SpecTextProps) {
  const [typed, setTyped] = useState("");
  const read = readSpecText(typed);
  // The typed text stays until the form holds another spec.
  const isTyped = typed !== "" && (read.spec === null || isEqual(read.spec, spec));
  const nulls = nullsIn(spec);
  const notes = nulls.map((each) => (hidden.includes(each) ? hiddenNote(each) : nullNote(each)));
  const text = isTyped ? typed : specToml(inOrder(spec, sections), notes);
  const error = isTyped ? read.error : null;
  const type = (changed: string) => {
    setTyped(changed);
    const { spec: next } = readSpecText(changed);
    if (next) edit(() => next);
  };
  // A spec file may also be JSON, which has null.
  const hasNull = !isTyped && nulls.some((each) => !hidden.includes(each));
  const content = hasNull ? JSON.stringify(spec, null, 2) : text;
  const file = isJson(content) ? "job.json" : "job.toml";
  return (
    <div className="spec-text stack">
      <textarea
        className="textarea mono"
        rows={24}
        aria-label="The spec as TOML; absent fields have their defaults"
        aria-invalid={error !== null || undefined}
        placeholder={'name = "first"\n\n[training]\nsteps = 200'}
        spellCheck={false}
        value={text}
        onChange={(event) => type(event.target.value)}
      />
      <footer className="spec-text-footer row">
        <span className={error ? "field-error" : "muted"} role={error ? "alert" : undefined}>
          {error ?? "Absent fields have their defaults. Values of env are visible here."}
        </span>
        <CopyButton text={text} />
        <ButtonLink small to={fileUrl(content)} download={file} reloadDocument>
          Download {file}
        </ButtonLink>
      </footer>
    </div>
  );
}

function fileUrl(text: string): string {
  return `data:text/plain;charset=utf-8,${encodeURIComponent(text)}`;
}
