// Applies live events to the query cache, so that no page requests data that an event contained.
import type { InfiniteData, QueryClient } from "@tanstack/react-query";
import { type ArtifactGroup, type JobFilter, jobQuery, keys } from "@/shared/api/queries";
import { Refresher } from "@/shared/api/refresh";
import type { ItemKind, Job, StreamItem } from "@/shared/api/types";
import {
  type JobPage,
  makesStale,
  mayEnter,
  placeJob,
  reduceJob,
  reducePages,
  removeJob,
} from "./jobs";
import type { StreamListener } from "./stream";

/** Period in which events are collected and applied together: a busy cluster sends hundreds a second. */
export const BATCH_MILLISECONDS = 200;
/** When more jobs than this must be read again together, the lists are read again instead. */
const MANY_JOBS = 12;
/** Kinds that contain the whole change; after any other kind, parts of the job's page are read again. */
const COMPLETE = new Set<ItemKind>([
  "metrics",
  "log",
  "phase",
  "waiting",
  "operation_progress",
  "operation_waiting",
  "facts",
]);
/** Kinds that change whether slots of nodes are held or free. */
const CHANGES_NODES = new Set<ItemKind>(["placed", "attempt_ended"]);
/** Kinds that change projects, or what belongs to one: members, limits, tokens and secrets. */
const CHANGES_PROJECTS = new Set<ItemKind>([
  "project_changed",
  "members_changed",
  "limits_changed",
  "service_token_changed",
  "secret_changed",
]);

/** Frequent notices that change one part of a job. */
const ONE_PART: Partial<Record<ItemKind, string>> = { rank_times: "ranks" };

const GROUPS: readonly ArtifactGroup[] = ["image", "histogram", "files"];

type JobList = InfiniteData<JobPage, string>;
type Pages = readonly JobPage[];

/** Applies events to one query client. */
export class Feed implements StreamListener {
  private events: StreamItem[] = [];
  private timer: ReturnType<typeof setTimeout> | null = null;

  constructor(
    private readonly client: QueryClient,
    private readonly query = jobQuery,
    private readonly refresher = new Refresher(client),
  ) {}

  event = (event: StreamItem): void => {
    this.events.push(event);
    this.timer ??= setTimeout(this.flush, BATCH_MILLISECONDS);
  };

  reset = (): void => {
    this.events = [];
    void this.client.invalidateQueries({
      predicate: ({ queryKey: [first] }) => first !== keys.schema[0],
    });
  };

  private flush = (): void => {
    const events = this.events;
    this.events = [];
    this.timer = null;
    const byJob = groupedByJob(events);
    this.removeDeleted(byJob);
    const known = this.reduce(byJob);
    const isNews = (event: StreamItem, id: string) =>
      makesStale(event) || (!known.has(id) && mayEnter(event));
    const stale = [...byJob].filter(([id, own]) => own.some((event) => isNews(event, id)));
    this.refreshJobs(stale.map(([id]) => id));
    this.refreshParts(events, byJob);
    if (events.some((event) => mayEnter(event) || event.kind === "job_deleted")) {
      this.refresher.refresh(keys.jobCounts);
    }
  };

  private removeDeleted(byJob: Map<string, StreamItem[]>): void {
    for (const [id, events] of byJob) {
      if (!events.some((event) => event.kind === "job_deleted")) continue;
      byJob.delete(id);
      this.eachList((pages) => removeJob(pages, id));
      void this.client.invalidateQueries({ queryKey: keys.job(id) });
    }
  }

  /** Apply events to the cached jobs and return the ids of the jobs that were cached. */
  private reduce(byJob: ReadonlyMap<string, readonly StreamItem[]>): Set<string> {
    const known = new Set<string>();
    for (const [id, events] of byJob) {
      this.client.setQueryData<Job>(keys.jobView(id), (job) => job && reduceJob(job, events));
    }
    this.eachList((pages, filter) => {
      for (const { id } of pages.flatMap((page) => page.items)) if (byJob.has(id)) known.add(id);
      return reducePages(pages, byJob, filter);
    });
    return known;
  }

  private refreshJobs(ids: readonly string[]): void {
    if (ids.length > MANY_JOBS) this.refresher.refresh(keys.jobs);
    else for (const id of ids) void this.refreshJob(id);
  }

  private async refreshJob(id: string): Promise<void> {
    try {
      const job = await this.client.fetchQuery({ ...this.query(id), staleTime: 0 });
      this.eachList((pages, filter) => placeJob(pages, job, filter));
    } catch {
      // A deleted job has an event of its own; a lost server ends in a reset.
    }
  }

  private refreshParts(
    events: readonly StreamItem[],
    byJob: ReadonlyMap<string, readonly StreamItem[]>,
  ): void {
    for (const [id, own] of byJob) {
      const changed = own.filter(({ kind }) => !COMPLETE.has(kind) && kind !== "artifacts");
      for (const key of keysOf(id, changed)) this.refresher.refresh(key);
      for (const group of groupsOf(own)) this.refresher.refresh(keys.artifacts(id, group));
    }
    if (events.some(({ kind }) => kind.startsWith("node_") || CHANGES_NODES.has(kind))) {
      this.refresher.refresh(keys.nodes);
    }
    // Use of projects changes with each job: only the page of projects needs it, and polls for it.
    if (events.some(({ kind }) => CHANGES_PROJECTS.has(kind))) {
      this.refresher.refresh(keys.projects);
    }
    if (events.some(({ kind }) => kind === "members_changed")) {
      this.refresher.refresh(keys.session);
    }
  }

  private eachList(change: (pages: Pages, filter: JobFilter) => Pages): void {
    for (const { queryKey } of this.client.getQueryCache().findAll({ queryKey: keys.jobs })) {
      this.client.setQueryData<JobList>(queryKey, (list) => {
        if (!list) return list;
        const pages = change(list.pages, queryKey[1] as JobFilter);
        const isSame = pages.every((page, index) => page === list.pages[index]);
        return isSame ? list : { ...list, pages: [...pages] };
      });
    }
  }
}

/** Return the queries of a job that events change: all, or single parts. */
function keysOf(id: string, changed: readonly StreamItem[]) {
  const parts = new Set(changed.map(({ kind }) => ONE_PART[kind] ?? ""));
  return parts.has("") ? [keys.job(id)] : [...parts].map((part) => keys.jobPart(id, part));
}

/** Return the artifact groups of notices; all groups for a notice without one. */
function groupsOf(events: readonly StreamItem[]): Set<ArtifactGroup> {
  return new Set(
    events.flatMap((event): readonly ArtifactGroup[] => {
      if (event.kind !== "artifacts") return [];
      return event.data.group ? [event.data.group] : GROUPS;
    }),
  );
}

function groupedByJob(events: readonly StreamItem[]): Map<string, StreamItem[]> {
  const byJob = new Map<string, StreamItem[]>();
  for (const event of events) {
    if (event.job_id === null) continue;
    const own = byJob.get(event.job_id);
    if (own) own.push(event);
    else byJob.set(event.job_id, [event]);
  }
  return byJob;
}
