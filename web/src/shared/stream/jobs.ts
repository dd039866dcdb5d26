// Updates rows of the jobs table from live events, without a request.
import { type JobFilter, ownerOf } from "@/shared/api/queries";
import type { ItemKind, JobSummary, StreamItem } from "@/shared/api/types";

/** Return the fields of a row that an event changes; null if it changes none. */
function patchOf(job: JobSummary, event: StreamItem): Partial<JobSummary> | null {
  switch (event.kind) {
    case "metrics":
      return { progress: event.data.progress };
    case "phase":
      return { progress: { ...job.progress, phase: event.data.phase } };
    case "waiting":
      return { reason: event.data.reason };
    case "priority_changed":
      return { priority: event.data.priority };
    case "owner_changed":
      return { owner: event.data.owner };
    case "placed":
      return {
        state: "starting",
        reason: null,
        attempt: event.attempt ?? job.attempt,
        layout: event.data.layout,
        started_at: job.started_at ?? event.at,
      };
    case "running":
      return { state: "running" };
    case "job_ended":
      return {
        state: event.data.state,
        reason: event.data.reason,
        ended_at: event.at,
        progress: { ...job.progress, phase: null, seconds_left: null },
      };
    default:
      return null;
  }
}

/** Events after which a job is read again: it may enter a table, or fields change that they lack. */
const STALE = new Set<ItemKind>([
  "owner_changed",
  "submitted",
  "imported",
  "queued",
  "placed",
  "stop_requested",
  "cancel_requested",
  "resume_requested",
  "size_changed",
  "facts",
]);

/** Whether the job must be read again after this event. */
export function makesStale(event: StreamItem): boolean {
  return STALE.has(event.kind);
}

/** Whether an event can bring a job into a table that does not show it yet. */
export function mayEnter(event: StreamItem): boolean {
  return (
    (STALE.has(event.kind) && event.kind !== "facts") ||
    event.kind === "running" ||
    event.kind === "job_ended"
  );
}

/** Return a row after events of its job, in their order. */
export function reduceJob<Row extends JobSummary>(job: Row, events: readonly StreamItem[]): Row {
  let row = job;
  for (const event of events) {
    const patch = patchOf(row, event);
    if (patch) row = { ...row, ...patch };
  }
  return row;
}

/** Only the server knows configuration values: a visible job stays, others are not added. */
const isFound = (job: JobSummary, word: string, isShown: boolean) =>
  word.includes("=")
    ? isShown
    : job.id.startsWith(word) ||
      [job.name, ...job.tags].some((text) => text.toLowerCase().includes(word));

/** Whether a table with this filter shows the job, by the server's rules. */
export function matches(job: JobSummary, filter: JobFilter, isShown = false): boolean {
  const words = filter.search.toLowerCase().split(" ");
  const owner = ownerOf(filter);
  return (
    (filter.states.length === 0 || filter.states.includes(job.state)) &&
    filter.tags.every((tag) => job.tags.includes(tag)) &&
    (filter.project === "" || job.project === filter.project) &&
    (owner === null || job.owner === owner) &&
    words.every((word) => isFound(job, word, isShown))
  );
}

export interface JobPage {
  items: JobSummary[];
  next_page_token?: string | null;
}

/** Return the pages after events, given by job id; rows that no longer match the filter are removed. */
export function reducePages(
  pages: readonly JobPage[],
  events: ReadonlyMap<string, readonly StreamItem[]>,
  filter: JobFilter,
): readonly JobPage[] {
  const moved: JobSummary[] = [];
  const reduced = pages.map((page) => {
    if (!page.items.some((row) => events.has(row.id))) return page;
    const items = page.items.flatMap((row) => {
      const after = reduceJob(row, events.get(row.id) ?? []);
      if (hasEnded(after) !== hasEnded(row)) moved.push(after);
      return !events.has(row.id) || matches(after, filter, true) ? [after] : [];
    });
    return { ...page, items };
  });
  // An ended job moves below the others.
  return moved.reduce<readonly JobPage[]>((now, job) => placeJob(now, job, filter), reduced);
}

/**
 * Return the pages with a job in its place: replaced, added, or removed when it does not match.
 *
 * Jobs that have not ended come first; both groups are sorted from the newest. A job beyond the pages read
 * so far is left to a later page.
 */
export function placeJob(
  pages: readonly JobPage[],
  job: JobSummary,
  filter: JobFilter,
): readonly JobPage[] {
  const without = removeJob(pages, job.id);
  const isShown = pages.some((page) => page.items.some((row) => row.id === job.id));
  if (!matches(job, filter, isShown)) return without;
  // The rows of a page as it was read, the job's own row included, decide where the page ends.
  const into = pages.findIndex((page) => {
    const last = page.items.at(-1);
    return !page.next_page_token || (last !== undefined && byPlace(job, last) <= 0);
  });
  return without.map((page, index) =>
    index === into ? { ...page, items: [...page.items, job].sort(byPlace) } : page,
  );
}

const hasEnded = (job: JobSummary) => job.ended_at !== null;

/** Compare by the server's order `active`: running, then waiting, then ended jobs. */
function byPlace(one: JobSummary, other: JobSummary): number {
  const [a, b] = [placeOf(one), placeOf(other)];
  const newestFirst = one.id < other.id ? 1 : one.id > other.id ? -1 : 0;
  if (a !== b || a !== QUEUED) return a - b || newestFirst;
  return other.priority - one.priority || -newestFirst;
}

const QUEUED = 1;

function placeOf(job: JobSummary): number {
  if (hasEnded(job)) return 2;
  return job.state === "queued" ? QUEUED : 0;
}

/** Return the pages without a job. */
export function removeJob(pages: readonly JobPage[], id: string): JobPage[] {
  return pages.map((page) =>
    page.items.some((row) => row.id === id)
      ? { ...page, items: page.items.filter((row) => row.id !== id) }
      : page,
  );
}
