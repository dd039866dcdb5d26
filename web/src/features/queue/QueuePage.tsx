// The waiting jobs in order, the holders of slots, and the forecast for another job.
import { type UseInfiniteQueryResult, useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { lazy, Suspense } from "react";
import { jobCountsQuery, nodesQuery, projectsQuery } from "@/shared/api/queries";
import type { QueueEntry } from "@/shared/api/types";
import { useBarriers } from "@/shared/api/useMay";
import { count, plural } from "@/shared/format/numbers";
import { command } from "@/shared/format/shell";
import { MoreRows } from "@/shared/job/MoreRows";
import { Button, ButtonLink } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Absent, EmptyState } from "@/shared/ui/Notice";
import { QUEUE } from "@/shared/url/pages";
import { usePageParams } from "@/shared/url/params";
import { queueQuery } from "./api";
import { HeldSlots } from "./HeldSlots";
import { keyOf, QueueTable } from "./QueueTable";
import "./queue.css";

/** Loaded when it is first opened, because it contains the TOML parser. */
const WhatIfDialog = lazy(async () => ({
  default: (await import("./WhatIfDialog")).WhatIfDialog,
}));

/** Period of reads of each visible page: positions change without events. The server keeps a forecast
 * for the same period. */
const REFRESH_MILLISECONDS = 5_000;
/** Period of reads of the nodes: events report changes of held slots, and other changes are rare. */
const NODES_REFRESH_MILLISECONDS = 60_000;
const EVERY_JOB = { states: [], tags: [], project: "", search: "", owner: "" };

export function QueuePage() {
  const [view, change] = usePageParams(QUEUE);
  const queue = useInfiniteQuery({
    ...queueQuery,
    refetchInterval: ({ state }) =>
      REFRESH_MILLISECONDS * Math.max(1, state.data?.pages.length ?? 1),
  });
  const nodes = useQuery({ ...nodesQuery, refetchInterval: NODES_REFRESH_MILLISECONDS });
  const counts = useQuery({
    ...jobCountsQuery(EVERY_JOB),
    refetchInterval: REFRESH_MILLISECONDS,
  });
  const waiting = counts.data?.queued;
  // The count has only jobs that the reader sees, the list all of them.
  const hasHidden = queue.data?.pages.some(({ items }) => items.some((entry) => !entry.job_id));
  return (
    <>
      <title>Queue · Trainyard</title>
      <header className="page-header">
        <h1>Queue</h1>
        {waiting !== undefined && (
          <span className="muted">
            {hasHidden
              ? plural(waiting, "job of your projects waits", "jobs of your projects wait")
              : plural(waiting, "job waits", "jobs wait")}
          </span>
        )}
        <div className="page-actions row">
          <Button onClick={() => change({ isForecast: true })}>When would a job start?</Button>
        </div>
      </header>
      <div className="stack">
        {nodes.data && <HeldSlots nodes={nodes.data} />}
        <Waiting queue={queue} />
        <CommandLine command={command("queue")} label="Lists the same jobs" />
      </div>
      {view.isForecast && (
        <Suspense>
          <WhatIfDialog
            from={view.from}
            onPick={(from) => change({ from })}
            onClose={() => change({ isForecast: false, from: null })}
          />
        </Suspense>
      )}
    </>
  );
}

type Queue = UseInfiniteQueryResult<{ pages: { items: QueueEntry[] }[] }>;

function Waiting({ queue }: { queue: Queue }) {
  const { data: projects } = useQuery(projectsQuery);
  const barriers = useBarriers();
  if (!queue.data) return <Absent query={queue} lines={12} />;
  const entries = once(queue.data.pages.flatMap((page) => page.items));
  if (entries.length === 0) {
    return (
      <EmptyState title="No job waits">
        <p>A new job is considered for slots immediately.</p>
        <ButtonLink look="primary" barrier={barriers("jobs:write")} to="/jobs/new">
          New job
        </ButtonLink>
      </EmptyState>
    );
  }
  return (
    <div>
      <QueueTable entries={entries} hasProjects={projects !== undefined && projects.length > 1} />
      <footer className="queue-footer">
        <span>
          {count(entries.length)}
          {queue.hasNextPage ? " so far" : " in all"}
        </span>
        <MoreRows query={queue} />
      </footer>
    </div>
  );
}

/** Return each job once: a job that moved back between the reads of two pages keeps its later place. */
function once(entries: readonly QueueEntry[]): QueueEntry[] {
  const byId = new Map<string, QueueEntry>();
  for (const entry of entries) {
    byId.delete(keyOf(entry));
    byId.set(keyOf(entry), entry);
  }
  return [...byId.values()];
}
