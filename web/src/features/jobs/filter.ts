// The filter of the jobs table: its values, and its command line.
import { EVERYONE, type JobFilter, ownerOf } from "@/shared/api/queries";
import type { Session } from "@/shared/api/types";
import { isOfPerson } from "@/shared/api/useMay";
import { command } from "@/shared/format/shell";

export function isEmpty(filter: JobFilter): boolean {
  return (
    filter.states.length === 0 &&
    filter.tags.length === 0 &&
    filter.project === "" &&
    filter.search === "" &&
    ownerOf(filter) === null
  );
}

/** Return the name of the person who sees the own jobs first; null on a server of one person. */
export function personOf(session: Session | null | undefined): string | null {
  return session?.is_shared && isOfPerson(session) ? (session.user?.name ?? null) : null;
}

/** Return the filter of the page: a person's own jobs if the URL has no filter. */
export function withDefaultOwner(filter: JobFilter, person: string | null): JobFilter {
  const isBare = isEmpty(filter) && filter.owner !== EVERYONE;
  return isBare && person !== null ? { ...filter, owner: person } : filter;
}

/** Return a list with a value removed, or added if it was absent. */
export function toggled<Value>(values: readonly Value[], value: Value): Value[] {
  return values.includes(value) ? values.filter((each) => each !== value) : [...values, value];
}

/** Return the command line that lists the same jobs, for a person of this name. */
export function listCommand(filter: JobFilter, person: string | null): string {
  const owner = ownerOf(filter);
  return command(
    "ps",
    ...filter.states.flatMap((state) => ["--state", state]),
    ...filter.tags.flatMap((tag) => ["--tag", tag]),
    ...(filter.project ? ["--project", filter.project] : []),
    ...(filter.search ? ["--search", filter.search] : []),
    ...(owner === null ? [] : owner === person ? ["--mine"] : ["--owner", owner]),
  );
}
