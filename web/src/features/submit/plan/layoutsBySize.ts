// Groups the layouts of a program. Pure.
import type { ProgramPlan } from "@/shared/api/types";

/** Return each number of slots, ascending, with the names of its layouts in order of preference. */
export function layoutsBySize(layouts: ProgramPlan["layouts"]): [number, string[]][] {
  const sizes = new Map<number, string[]>();
  for (const { world_size, name } of layouts) {
    sizes.set(world_size, [...(sizes.get(world_size) ?? []), name]);
  }
  return [...sizes].sort(([one], [other]) => one - other);
}
