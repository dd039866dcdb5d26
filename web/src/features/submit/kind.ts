// The two kinds of job: one runs the built-in trainer, the other a program.
import { isObject, type JsonObject, valueAt, withValue } from "@/shared/format/document";

const PROGRAM = ["/program"];

export interface Draft {
  spec: JsonObject;
  /** Values of the other kind that this kind cannot have. */
  parked: JsonObject;
}

/** Return the draft as the other kind of job, with that kind's earlier values restored. */
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

/** Return `to` with the values of `from` at some pointers. */
function moved(from: JsonObject, to: JsonObject, pointers: readonly string[]): JsonObject {
  return pointers.reduce<JsonObject>((draft, pointer) => {
    const value = valueAt(from, pointer);
    return value === undefined ? draft : withValue(draft, pointer, value);
  }, to);
}
