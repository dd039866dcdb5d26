// One field of the spec with its help, its problems, and a reset to its default.

import { memo } from "react";
import type { Json } from "@/shared/format/document";
import { Field } from "@/shared/ui/Field";
import type { FormField } from "../schema";
import { ControlOf } from "./controls";

interface FieldRowProps {
  field: FormField;
  /** Value in the draft; undefined for the default. */
  value: Json | undefined;
  errors: readonly string[] | undefined;
  warnings: readonly string[] | undefined;
  onChange: (field: FormField, value: Json) => void;
}

/** Return the id of a field's control, for links from problems elsewhere on the page. */
export function controlId(pointer: string): string {
  return `field${pointer.replaceAll("/", "-")}`;
}

export const FieldRow = memo(function FieldRow({
  field,
  value,
  errors,
  warnings,
  onChange,
}: FieldRowProps) {
  const id = controlId(field.pointer);
  const isSet = value !== undefined;
  return (
    <Field
      htmlFor={id}
      label={
        <>
          <span className="mono">{field.name}</span>
          {isSet && !field.isRequired && (
            <button
              type="button"
              className="field-reset link small"
              title={`Back to the default, ${shownDefault(field)}`}
              onClick={() => onChange(field, field.default)}
            >
              reset
            </button>
          )}
        </>
      }
      help={<Help text={field.help} />}
      error={errors?.join(" ")}
      warning={warnings?.join(" ")}
      className={isWide(field) ? "field-wide" : undefined}
    >
      <ControlOf
        id={id}
        field={field}
        value={isSet ? value : field.default}
        isWrong={errors !== undefined}
        onChange={(changed) => onChange(field, changed)}
      />
    </Field>
  );
});

function isWide({ control }: FormField): boolean {
  return control.kind === "pairs" || (control.kind === "words" && control.isCommand);
}

/** Help text, with `code` in backticks. */
export function Help({ text }: { text: string }) {
  return (
    text
      .split("`")
      // biome-ignore lint/suspicious/noArrayIndexKey: the pieces of a text never change places
      .map((piece, index) => (index % 2 === 1 ? <code key={index}>{piece}</code> : piece))
  );
}

function shownDefault(field: FormField): string {
  return field.default === null ? "absent" : JSON.stringify(field.default);
}
