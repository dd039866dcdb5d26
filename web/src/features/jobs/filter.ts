// The filter of the jobs table, as the URL holds it.
import { type JobFilter, legalSearch } from "@/shared/api/queries";
import type { JobState } from "@/shared/api/types";
import { command } from "@/shared/format/shell";

/** Every state, in the order of a job's life. */
export const STATES: readonly JobState[] = [
  "queued",
  "starting",
  "running",
  "stopping",
  "succeeded",
  "failed",
  "stopped",
  "cancelled",
];

const TAG = /^[A-Za-z0-9][A-Za-z0-9._:/-]*$/;
const MOST_TAGS = 8;

/** Return the filter in a URL; what no filter can hold is left out. */
export function readFilter(params: URLSearchParams): JobFilter {
  return {
    states: STATES.filter((state) => params.getAll("state").includes(state)),
    tags: [...new Set(params.getAll("tag"))].filter((tag) => TAG.test(tag)).slice(0, MOST_TAGS),
    search: legalSearch(params.get("q") ?? ""),
  };
}

/** Return the URL's parameters of a filter. */
export function writeFilter(filter: JobFilter): URLSearchParams {
  const params = new URLSearchParams();
  for (const state of filter.states) params.append("state", state);
  for (const tag of filter.tags) params.append("tag", tag);
  if (filter.search) params.set("q", filter.search);
  return params;
}

export function isEmpty(filter: JobFilter): boolean {
  return filter.states.length === 0 && filter.tags.length === 0 && filter.search === "";
}

/** Return a list with a value taken out, or put in when it is not there. */
export function toggled<Value>(values: readonly Value[], value: Value): Value[] {
  return values.includes(value) ? values.filter((each) => each !== value) : [...values, value];
}

/** Return the command line that lists the same jobs. */
export function listCommand(filter: JobFilter): string {
  return command(
    "ps",
    ...filter.states.flatMap((state) => ["--state", state]),
    ...filter.tags.flatMap((tag) => ["--tag", tag]),
    ...(filter.search ? ["--search", filter.search] : []),
  );
}
