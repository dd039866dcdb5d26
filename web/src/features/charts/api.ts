// The metrics of a job.
import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import type { Metrics } from "@/shared/api/types";
import { at } from "@/shared/job/api";
import type { Extent } from "@/shared/ui/chart/curve";

const MAX_POINTS = 1000;

/** Names of series, and the steps of a zoom: together the key of charts below `["metrics", id]`. */
export interface MetricsWanted {
  names: readonly string[];
  range: Extent | null;
}

/** Exact buckets. Live points write to the same key, apart from what other events make stale. */
export const metricsQuery = (id: string, wanted: MetricsWanted) =>
  queryOptions({
    queryKey: ["metrics", id, wanted] as const,
    queryFn: async ({ signal }) => {
      const view = await ask(
        api.GET("/api/v1/jobs/{job_id}/metrics", {
          params: {
            ...at(id),
            query: {
              names: wanted.names.join(","),
              max_points: MAX_POINTS,
              ...(wanted.range ? { from_step: wanted.range[0], to_step: wanted.range[1] } : {}),
            },
          },
          signal,
        }),
      );
      return view as Metrics; // CSV comes only where it is asked for
    },
    placeholderData: keepPreviousData,
  });
