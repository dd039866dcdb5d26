// Problems of a draft that are found without the server: values that no spec can hold.
import type { Problem } from "@/shared/api/types";
import { dotted, isObject, type JsonObject, nullsIn, valueAt } from "@/shared/format/document";
import { splitWords } from "@/shared/format/shell";
import { rowsProblem } from "./form/pairs";
import type { FormField, FormSection } from "./schema";

/** Fields of `program.code` that only the command line reads. */
const PACKED = ["local", "git", "commit", "include"];

/**
 * Return each problem with its pointer.
 *
 * `hidden` are the pointers of another job's hidden values, which are null in the draft until they are
 * entered again.
 */
export function draftProblems(
  spec: JsonObject,
  sections: readonly FormSection[],
  hidden: readonly string[],
): Problem[] {
  const fields = sections.flatMap((section) => section.fields);
  return [
    ...unread(spec, hidden),
    ...fields.flatMap((field) => typing(spec, field)),
    ...packed(spec),
  ];
}

function unread(spec: JsonObject, hidden: readonly string[]): Problem[] {
  const nulls = new Set(nullsIn(spec));
  return hidden
    .filter((pointer) => nulls.has(pointer))
    .map((pointer) => ({
      pointer,
      detail: `The value of ${dotted(pointer)} is not shown here. Enter it again, or remove it.`,
    }));
}

function typing(spec: JsonObject, { pointer, control, isRequired }: FormField): Problem[] {
  const value = valueAt(spec, pointer);
  if (isRequired && Array.isArray(value) && value.length === 0) {
    return [{ pointer, detail: "Enter the command to run, such as train.py." }];
  }
  if (control.kind === "words" && typeof value === "string") {
    const found = splitWords(value);
    if (Array.isArray(found)) return [];
    const detail =
      found.open === "\\"
        ? "Nothing follows the last \\."
        : `The quote ${found.open} is not closed.`;
    return [{ pointer, detail }];
  }
  if (control.kind !== "pairs" || !Array.isArray(value)) return [];
  const detail = rowsProblem(value);
  return detail === null ? [] : [{ pointer, detail }];
}

function packed(spec: JsonObject): Problem[] {
  const code = valueAt(spec, "/program/code");
  if (!isObject(code)) return [];
  return PACKED.filter((name) => name in code).map((name) => ({
    pointer: `/program/code/${name}`,
    detail: `${name} names files of your machine, which \`trainyard submit job.toml\` packs; a browser does not read them.`,
  }));
}
