// Fields that most jobs set: always visible, the others after a click.
import type { FormField } from "../schema";

export const COMMON: ReadonlySet<string> = new Set([
  "/name",
  "/tags",
  "/description",
  "/env",
  "/program/command",
  "/program/launcher",
  "/program/arguments",
  "/program/working_dir",
  "/program/steps",
  "/program/resume",
  "/program/code/folder",
  "/program/code/pack",
  "/model/size",
  "/data/source",
  "/data/path",
  "/training/steps",
  "/training/seq_len",
  "/training/global_batch_size",
  "/training/micro_batch_size",
  "/optimizer/lr",
  "/optimizer/weight_decay",
  "/lr_schedule/warmup_steps",
  "/checkpoint/interval_steps",
  "/resources/device",
  "/resources/priority",
]);

/** Whether most jobs set a field; fields with the unit of ranks are the axes and the world size. */
export function isCommon({ pointer, unit, control }: FormField): boolean {
  return COMMON.has(pointer) || (unit === "ranks" && control.kind === "number");
}
