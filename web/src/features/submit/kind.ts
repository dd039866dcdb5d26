// The two kinds of job: the built-in trainer runs, or a program in its place.
import { isObject, type JsonObject, valueAt, withValue } from "@/shared/format/document";

const PROGRAM = ["/program"];

export interface Draft {
  spec: JsonObject;
  /** What the other kind of job had, and this one may not have. */
  parked: JsonObject;
}

/** Return the draft as the other kind of job; what that kind had before is there again. */
export function otherKind({ spec, parked }: Draft, ofTrainer: readonly string[]): Draft {
  const hasProgram = isObject(spec.program);
  const left = hasProgram ? PROGRAM : ofTrainer;
  const taken = hasProgram ? ofTrainer : PROGRAM;
  const without = left.reduce<JsonObject>((draft, each) => withValue(draft, each, undefined), spec);
  const changed = moved(parked, without, taken);
  const isNew = !hasProgram && !isObject(changed.program);
  return {
    spec: isNew ? { ...changed, program: { command: [] } } : changed,
    parked: moved(spec, {}, left),
  };
}

/** Return `to` with the values that `from` has at some pointers. */
function moved(from: JsonObject, to: JsonObject, pointers: readonly string[]): JsonObject {
  return pointers.reduce<JsonObject>((draft, pointer) => {
    const value = valueAt(from, pointer);
    return value === undefined ? draft : withValue(draft, pointer, value);
  }, to);
}
