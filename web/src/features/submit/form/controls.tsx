// The control of each kind of field.

import { type ChangeEvent, type ComponentProps, useId, useState } from "react";
import { isObject, type Json } from "@/shared/format/document";
import { cx } from "@/shared/ui/cx";
import type { Control, FormField } from "../schema";
import { isEqual, numberTyped } from "../spec";

interface ControlProps {
  id: string;
  field: FormField;
  value: Json;
  isWrong: boolean;
  onChange: (value: Json) => void;
}

export function ControlOf(props: ControlProps) {
  const { control } = props.field;
  switch (control.kind) {
    case "switch":
      return <Switch {...props} />;
    case "choice":
      return <Choice {...props} options={control.options} />;
    case "choices":
      return <Choices {...props} options={control.options} />;
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

/** What is yes or no is written as a switch writes it. */
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

type TypedKind = Exclude<Control, { kind: "switch" | "choice" | "choices" }>;

/** Kinds that are typed: how a value is written, and how what was typed is read. */
const WRITINGS: Record<
  TypedKind["kind"],
  { write: (value: Json) => string; read: (text: string) => Json }
> = {
  text: { write: String, read: (text) => text },
  number: { write: String, read: numberTyped },
  "word-or-number": { write: String, read: numberTyped },
  words: {
    write: (value) => (Array.isArray(value) ? value.join(", ") : String(value)),
    read: (text) => text.split(/[\s,]+/).filter(Boolean),
  },
  pairs: { write: writePairs, read: readPairs },
  json: { write: (value) => JSON.stringify(value), read: readJson },
};

const SEVERAL_LINES = 2;

/** Keeps what was typed as it was typed: `1e-4` does not turn into `0.0001` under the cursor. */
function Typed(props: ControlProps & { control: TypedKind }) {
  const { field, value, control, onChange } = props;
  const { write } = WRITINGS[control.kind];
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
  const isLong = control.kind === "pairs" || (control.kind === "text" && control.isLong);
  if (isLong) return <textarea {...shared} className="textarea" rows={SEVERAL_LINES} />;
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
        className="input"
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

/** Nothing typed means the default, or for a value that may be absent, its absence. */
function meaningOf(typed: string, field: FormField, control: TypedKind): Json {
  if (typed !== "") return WRITINGS[control.kind].read(typed);
  return field.isNullable ? null : field.default;
}

/** The default stands in grey, where nothing is typed. */
function placeholderOf(field: FormField, control: TypedKind): string {
  if (field.isNullable) return "absent";
  return WRITINGS[control.kind].write(field.default) || EXAMPLES[control.kind] || "";
}

const EXAMPLES: Partial<Record<TypedKind["kind"], string>> = {
  pairs: "NAME=value, one a line",
  words: "none",
};

function writePairs(value: Json): string {
  if (!isObject(value)) return String(value);
  return Object.entries(value)
    .map(([name, item]) => `${name}=${item}`)
    .join("\n");
}

/** A line without `=` is the name of an empty value, while it is being typed. */
function readPairs(text: string): Json {
  const lines = text.split("\n").filter((line) => line.trim() !== "");
  return Object.fromEntries(
    lines.map((line) => {
      const [name = "", ...rest] = line.split("=");
      return [name.trim(), rest.join("=")];
    }),
  );
}

function readJson(text: string): Json {
  try {
    return JSON.parse(text) as Json;
  } catch {
    return text;
  }
}
