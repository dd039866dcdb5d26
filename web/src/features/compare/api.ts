// Requests of the compare page: the series of its jobs, then their curves.
import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import { keys } from "@/shared/api/queries";
import { command } from "@/shared/format/shell";
import type { Axis } from "@/shared/ui/chart/axis";
import type { Extent } from "@/shared/ui/chart/curve";

const MAX_POINTS = 600;

/** Jobs, series and stretch of a comparison; together they are its query key. */
export interface Wanted {
  jobs: readonly string[];
  names: readonly string[];
  axis: Axis;
  range: Extent | null;
}

/** The jobs with the names of their series, without a curve. */
export const headsQuery = (jobs: readonly string[]) =>
  queryOptions({
    queryKey: [...keys.compare, "heads", jobs] as const,
    queryFn: ({ signal }) =>
      ask(
        api.GET("/api/v1/metrics/compare", { params: { query: { jobs: jobs.join(",") } }, signal }),
      ),
    enabled: jobs.length > 0,
  });

/** Exact buckets of the curves; the previous curves stay visible until they arrive. */
export const curvesQuery = ({ jobs, names, axis, range }: Wanted) =>
  queryOptions({
    // Without a stretch the answer is the same for every axis.
    queryKey: [...keys.compare, "curves", { jobs, names, range, axis: range && axis }] as const,
    queryFn: ({ signal }) =>
      ask(
        api.GET("/api/v1/metrics/compare", {
          params: {
            query: {
              jobs: jobs.join(","),
              names: names.join(","),
              max_points: MAX_POINTS,
              ...(range ? { x: axis, from_x: range[0], to_x: range[1] } : {}),
            },
          },
          signal,
        }),
      ),
    enabled: jobs.length > 0 && names.length > 0,
    placeholderData: keepPreviousData,
  });

/** Values of configuration and summary that differ between the jobs. */
export const factsQuery = (jobs: readonly string[]) =>
  queryOptions({
    queryKey: [...keys.compare, "facts", jobs] as const,
    queryFn: ({ signal }) =>
      ask(
        api.GET("/api/v1/facts/compare", { params: { query: { jobs: jobs.join(",") } }, signal }),
      ),
    enabled: jobs.length > 1,
    placeholderData: keepPreviousData,
  });

/** The command line that writes the same curves. */
export function compareCommand({ jobs, names, axis, range }: Wanted): string {
  return command(
    "compare",
    ...jobs,
    ...(names.length > 0 ? ["--names", names.join(",")] : []),
    ...(range && axis !== "step" ? ["--x", axis] : []),
    ...(range ? ["--from", String(range[0]), "--to", String(range[1])] : []),
    "--csv",
  );
}
