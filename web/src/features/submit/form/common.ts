// Fields that most jobs set: shown at once, the others after a click.
import type { FormSection } from "../schema";

export const COMMON: ReadonlySet<string> = new Set([
  "/name",
  "/tags",
  "/description",
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
  "/parallelism/dp_replicate",
  "/parallelism/dp_shard",
  "/checkpoint/interval_steps",
  "/resources/world_size",
  "/resources/device",
  "/resources/priority",
]);

/** Whether a section has a field that most jobs set. */
export function isCommon(section: FormSection): boolean {
  return section.fields.some((field) => COMMON.has(field.pointer));
}
