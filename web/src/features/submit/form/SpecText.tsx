// The spec as JSON, to read, edit, paste and download.
import { useState } from "react";
import { type JsonObject, parsedSpec } from "@/shared/format/document";
import { ButtonLink } from "@/shared/ui/Button";
import { CopyButton } from "@/shared/ui/CommandLine";
import { isEqual } from "../spec";
import type { Edit } from "./SpecForm";

interface SpecTextProps {
  spec: JsonObject;
  edit: Edit;
}

export function SpecText({ spec, edit }: SpecTextProps) {
  const [typed, setTyped] = useState("");
  const read = parsedSpec(typed);
  // The typed text stays until the form holds another spec.
  const isTyped = typed !== "" && (read.spec === null || isEqual(read.spec, spec));
  const text = isTyped ? typed : JSON.stringify(spec, null, 2);
  const error = isTyped ? read.error : null;
  const type = (changed: string) => {
    setTyped(changed);
    const { spec: next } = parsedSpec(changed);
    if (next) edit(() => next);
  };
  return (
    <div className="spec-text stack">
      <textarea
        className="textarea mono"
        rows={24}
        aria-label="The spec as JSON; a field that is absent has its default"
        aria-invalid={error !== null || undefined}
        spellCheck={false}
        value={text}
        onChange={(event) => type(event.target.value)}
      />
      <footer className="spec-text-footer row">
        <span className={error ? "field-error" : "muted"}>
          {error ?? "A field that is absent has its default."}
        </span>
        <CopyButton text={text} />
        <ButtonLink small to={fileUrl(text)} download="job.json" reloadDocument>
          Download job.json
        </ButtonLink>
      </footer>
    </div>
  );
}

function fileUrl(text: string): string {
  return `data:application/json,${encodeURIComponent(text)}`;
}
