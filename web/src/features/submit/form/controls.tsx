// The control of each kind of field.

import { type ChangeEvent, type ComponentProps, useId, useState } from "react";
import type { Json } from "@/shared/format/document";
import { COMMAS, joinWords, SPACES, splitWords } from "@/shared/format/shell";
import { cx } from "@/shared/ui/cx";
import type { Control, FormField } from "../schema";
import { isEqual, numberTyped } from "../spec";
import { type ControlProps, PairsTable } from "./PairsTable";

export function ControlOf(props: ControlProps) {
  const { control } = props.field;
  switch (control.kind) {
    case "switch":
      return <Switch {...props} />;
    case "choice":
      return <Choice {...props} options={control.options} />;
    case "choices":
      return <Choices {...props} options={control.options} />;
    case "pairs":
      return <PairsTable {...props} pairs={control} />;
    default:
      return <Typed {...props} control={control} />;
  }
}

function common({ id, isWrong }: ControlProps) {
  return { id, "aria-describedby": `${id}-said`, "aria-invalid": isWrong || undefined };
}

function Switch(props: ControlProps) {
  return (
    <label className="switch row">
      <input
        {...common(props)}
        type="checkbox"
        checked={props.value === true}
        onChange={(event) => props.onChange(event.target.checked)}
      />
      <span>{worded(props.value === true)}</span>
    </label>
  );
}

function Choice(props: ControlProps & { options: (string | boolean)[] }) {
  const { options } = props;
  return (
    <select
      {...common(props)}
      className="select"
      value={worded(props.value)}
      onChange={(event) => props.onChange(options[event.target.selectedIndex] ?? null)}
    >
      {options.map((option) => (
        <option key={String(option)}>{worded(option)}</option>
      ))}
    </select>
  );
}

/** Return a value as text; booleans as in a switch. */
function worded(value: Json): string {
  if (typeof value === "boolean") return value ? "yes" : "no";
  return String(value);
}

function Choices(props: ControlProps & { options: string[] }) {
  const chosen = Array.isArray(props.value) ? props.value : [];
  const toggle = (option: string) =>
    props.onChange(props.options.filter((each) => chosen.includes(each) !== (each === option)));
  return (
    <fieldset className="choices" id={props.id} aria-describedby={`${props.id}-said`}>
      <legend className="visually-hidden">{props.field.name}</legend>
      {props.options.map((option) => (
        <label key={option} className="choice row">
          <input
            type="checkbox"
            checked={chosen.includes(option)}
            onChange={() => toggle(option)}
          />
          {option}
        </label>
      ))}
    </fieldset>
  );
}

type TypedKind = Exclude<Control, { kind: "switch" | "choice" | "choices" | "pairs" }>;

interface Writing {
  write: (value: Json) => string;
  read: (text: string) => Json;
}

/** How each typed kind formats a value and parses the typed text. */
const WRITINGS: Record<TypedKind["kind"] | "command", Writing> = {
  text: { write: String, read: (text) => text },
  number: { write: String, read: numberTyped },
  "word-or-number": { write: String, read: numberTyped },
  words: wordsWriting(COMMAS),
  command: wordsWriting(SPACES),
  json: { write: (value) => JSON.stringify(value), read: readJson },
};

const SEVERAL_LINES = 2;

/** Keeps the text as typed: `1e-4` does not turn into `0.0001` under the cursor. */
function Typed(props: ControlProps & { control: TypedKind }) {
  const { field, value, control, onChange } = props;
  const { write } = writingOf(control);
  const [typed, setTyped] = useState("");
  const isTyped = isEqual(meaningOf(typed, field, control), value);
  const shared = {
    ...common(props),
    value: isTyped ? typed : value === null ? "" : write(value),
    placeholder: placeholderOf(field, control),
    spellCheck: false,
    autoComplete: "off",
    onChange: (event: ChangeEvent<HTMLInputElement | HTMLTextAreaElement>) => {
      setTyped(event.target.value);
      onChange(meaningOf(event.target.value, field, control));
    },
  };
  if (control.kind === "text" && control.isLong)
    return <textarea {...shared} className="textarea" rows={SEVERAL_LINES} />;
  return <TextInput shared={shared} field={field} control={control} />;
}

interface TextInputProps {
  shared: ComponentProps<"input">;
  field: FormField;
  control: TypedKind;
}

function TextInput({ shared, field, control }: TextInputProps) {
  const list = useId();
  const suggestions = "suggestions" in control ? control.suggestions : [];
  return (
    <span className={cx("typed", field.unit && "typed-unit")}>
      <input
        {...shared}
        className={cx("input", control.kind === "words" && control.isCommand && "mono")}
        inputMode={control.kind === "number" ? "decimal" : undefined}
        list={suggestions.length > 0 ? list : undefined}
      />
      {field.unit && <span className="unit">{field.unit}</span>}
      {suggestions.length > 0 && (
        <datalist id={list}>
          {suggestions.map((each) => (
            <option key={each} value={each} />
          ))}
        </datalist>
      )}
    </span>
  );
}

/** Return the value of typed text; an empty text is the default, or null for a nullable field. */
function meaningOf(typed: string, field: FormField, control: TypedKind): Json {
  if (typed !== "") return writingOf(control).read(typed);
  return field.isNullable ? null : field.default;
}

/** Return the default, shown in grey in an empty field. */
function placeholderOf(field: FormField, control: TypedKind): string {
  if (field.isNullable) return "absent";
  if (field.isRequired && field.default === null) return "required";
  const byDefault = writingOf(control).write(field.default);
  if (byDefault !== "" || control.kind !== "words") return byDefault;
  return control.isCommand && field.isRequired ? "train.py --flag 'two words'" : "none";
}

function writingOf(control: TypedKind): Writing {
  return WRITINGS[control.kind === "words" && control.isCommand ? "command" : control.kind];
}

/** Words of a line; while a quote is open, the value is the text itself. */
function wordsWriting(between: RegExp): Writing {
  return {
    write: (value) =>
      Array.isArray(value) ? joinWords(value.map(String), between) : String(value),
    read: (text) => {
      const words = splitWords(text, between);
      return Array.isArray(words) ? words : text;
    },
  };
}

function readJson(text: string): Json {
  try {
    return JSON.parse(text) as Json;
  } catch {
    return text;
  }
}
