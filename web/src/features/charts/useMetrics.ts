// The charts' data: exact buckets, brought forward by live points, read anew every two seconds.
import { type QueryClient, useQuery, useQueryClient } from "@tanstack/react-query";
import { useRefresher } from "@/shared/api/refresh";
import type { ItemKind, Metrics, StreamItem } from "@/shared/api/types";
import { useStream } from "@/shared/stream/useStream";
import { type MetricsWanted, metricsQuery } from "./api";
import { appendPoint, type Point, pointOf } from "./live";

const REFRESH_MILLISECONDS = 2_000;
/** Events that change which steps belong to the lineage, or bring points in another way. */
const CHANGING = new Set<ItemKind>(["metrics", "placed", "running", "attempt_ended", "resumed"]);

export function useMetrics(jobId: string, wanted: MetricsWanted) {
  return useQuery({ ...metricsQuery(jobId, wanted), enabled: wanted.names.length > 0 });
}

/** Keep all charts of a job true while the caller is mounted. */
export function useLiveMetrics(jobId: string): void {
  const client = useQueryClient();
  const refresher = useRefresher(REFRESH_MILLISECONDS);
  useStream({
    event: (event: StreamItem) => {
      if (event.job_id !== jobId || !CHANGING.has(event.kind)) return;
      const point = pointOf(event);
      if (point) extend(client, jobId, point);
      refresher.refresh(["metrics", jobId]);
    },
  });
}

/** Add a point to all charts of a job that reach up to its step. */
function extend(client: QueryClient, jobId: string, point: Point): void {
  for (const { queryKey } of client.getQueryCache().findAll({ queryKey: ["metrics", jobId] })) {
    const { names, range } = queryKey[2] as MetricsWanted;
    if (range && point.step > range[1]) continue;
    client.setQueryData<Metrics>(queryKey, (view) => view && appendPoint(view, point, names));
  }
}
