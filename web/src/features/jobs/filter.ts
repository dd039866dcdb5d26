// The filter of the jobs table: its values, and its command line.
import type { JobFilter } from "@/shared/api/queries";
import { command } from "@/shared/format/shell";

export function isEmpty(filter: JobFilter): boolean {
  return (
    filter.states.length === 0 &&
    filter.tags.length === 0 &&
    filter.project === "" &&
    filter.search === ""
  );
}

/** Return a list with a value removed, or added if it was absent. */
export function toggled<Value>(values: readonly Value[], value: Value): Value[] {
  return values.includes(value) ? values.filter((each) => each !== value) : [...values, value];
}

/** Return the command line that lists the same jobs. */
export function listCommand(filter: JobFilter): string {
  return command(
    "ps",
    ...filter.states.flatMap((state) => ["--state", state]),
    ...filter.tags.flatMap((tag) => ["--tag", tag]),
    ...(filter.project ? ["--project", filter.project] : []),
    ...(filter.search ? ["--search", filter.search] : []),
  );
}
