// The data of a comparison: first the names of series, then the curves; live while jobs run.
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { keys, MAX_COMPARED } from "@/shared/api/queries";
import { useRefresher } from "@/shared/api/refresh";
import type { ComparedJob, StreamItem } from "@/shared/api/types";
import { useStream } from "@/shared/stream/useStream";
import type { CompareView } from "@/shared/url/pages";
import { curvesQuery, headsQuery, type Wanted } from "./api";
import { drawnNames } from "./view";

export function useComparison(view: CompareView) {
  const slots = view.slots.join(",");
  const ids = useMemo(() => slots.split(",").filter((id) => id !== ""), [slots]);
  // Request no more jobs than the server accepts, and only series that it knows.
  const asked = ids.length > MAX_COMPARED ? NONE : ids;
  const heads = useQuery(headsQuery(asked));
  const known = useMemo(() => namesOf(heads.data?.jobs ?? []), [heads.data]);
  const chosen = view.names?.join(",") ?? null;
  const names = useMemo(
    () => drawnNames(chosen === null ? null : chosen.split(","), known),
    [chosen, known],
  );
  const wanted: Wanted = { jobs: asked, names, axis: view.axis, range: view.range };
  const curves = useQuery(curvesQuery(wanted));
  const jobs = useMemo(() => {
    const byId = new Map<string, ComparedJob>();
    for (const job of [...(heads.data?.jobs ?? []), ...(curves.data?.jobs ?? [])]) {
      byId.set(job.id, job);
    }
    return byId;
  }, [heads.data, curves.data]);
  return { ids, heads, curves, known, names, wanted, jobs };
}

const NONE: readonly string[] = [];

function namesOf(jobs: readonly ComparedJob[]): ReadonlySet<string> {
  return new Set(jobs.flatMap((job) => job.names).sort());
}

const REFRESH_MILLISECONDS = 2_000;

/** Read the comparison again after events of its jobs, every two seconds at most. */
export function useLiveComparison(
  ids: readonly string[],
  known: ReadonlySet<string>,
  onDeleted: (id: string) => void,
): void {
  const refresher = useRefresher(REFRESH_MILLISECONDS);
  useStream({
    event: (event: StreamItem) => {
      const id = event.job_id;
      if (id === null || !ids.includes(id) || event.kind === "log") return;
      if (event.kind === "job_deleted") {
        onDeleted(id);
        return;
      }
      refresher.refresh(bringsNews(event, known) ? keys.compare : [...keys.compare, "curves"]);
    },
  });
}

/** Whether an event changes more than curves: any event except points of known series. */
export function bringsNews(event: StreamItem, known: ReadonlySet<string>): boolean {
  if (event.kind !== "metrics") return true;
  return Object.keys(event.data.values).some((name) => !known.has(name));
}
