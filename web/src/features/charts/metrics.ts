// The metrics of a job: exact buckets, extended by live points, read again every two seconds.
import {
  keepPreviousData,
  type QueryClient,
  useQuery,
  useQueryClient,
} from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import { useRefresher } from "@/shared/api/refresh";
import type { ItemKind, MetricCurve, Metrics, StreamItem } from "@/shared/api/types";
import { numberOf } from "@/shared/format/numbers";
import { at } from "@/shared/job/api";
import { useStream } from "@/shared/stream/useStream";
import type { Curve, Extent } from "@/shared/ui/chart/curve";
import { BRANCH, SINGLE } from "@/shared/ui/chart/looks";
import { smoothed } from "@/shared/ui/chart/values/smoothed";

const MAX_POINTS = 1000;
const REFRESH_MILLISECONDS = 2_000;
/** Events that change the steps of the lineage, or that announce points without containing them. */
const CHANGING = new Set<ItemKind>(["metrics", "placed", "running", "attempt_ended", "resumed"]);
/** Name of the main branch; the others are abandoned. */
const LINEAGE = "lineage";

/** Names of series, and steps of a zoom; together they are a query key below `["metrics", id]`. */
export interface MetricsRequest {
  names: readonly string[];
  range: Extent | null;
}

/** Read exact buckets. Live points are written under the same key, between two reads. */
export function useMetrics(id: string, request: MetricsRequest) {
  const { names, range } = request;
  return useQuery({
    queryKey: ["metrics", id, request],
    queryFn: async ({ signal }) => {
      const metrics = await ask(
        api.GET("/api/v1/jobs/{job_id}/metrics", {
          params: {
            ...at(id),
            query: {
              names: names.join(","),
              max_points: MAX_POINTS,
              ...(range ? { from_step: range[0], to_step: range[1] } : {}),
            },
          },
          signal,
        }),
      );
      return metrics as Metrics; // the endpoint answers with CSV only if a request accepts CSV
    },
    placeholderData: keepPreviousData,
    enabled: names.length > 0,
  });
}

/** Keep all charts of a job current while the caller is mounted. */
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
    const { names, range } = queryKey[2] as MetricsRequest;
    if (range && point.step > range[1]) continue;
    client.setQueryData<Metrics>(queryKey, (known) => known && appendPoint(known, point, names));
  }
}

/** The values of one step, from an event of stored points. */
export interface Point {
  step: number;
  values: Record<string, number>;
}

/** Return the point of an event; null if it contains none. */
export function pointOf(event: StreamItem): Point | null {
  if (event.kind !== "metrics") return null;
  const { step, values } = event.data;
  const numbers: Record<string, number> = {};
  for (const [name, value] of Object.entries(values)) {
    const number = numberOf(value);
    if (number !== null) numbers[name] = number;
  }
  return { step, values: numbers };
}

/**
 * Return the metrics with a point added at the end of each lineage, in its own bucket.
 *
 * The next read of the buckets adds points before the end of a curve, and new series that are not
 * in `names`.
 */
export function appendPoint(metrics: Metrics, point: Point, names: readonly string[]): Metrics {
  const drawn = new Set(metrics.curves.filter(isLineage).map((curve) => curve.name));
  const fresh = names.filter((name) => name in point.values && !drawn.has(name)).map(emptyCurve);
  const added = Object.keys(point.values).filter((name) => !metrics.names.includes(name));
  const curves = [...metrics.curves, ...fresh].map((curve) => {
    const value = isLineage(curve) ? point.values[curve.name] : undefined;
    if (value === undefined || point.step <= (curve.steps.at(-1) ?? -1)) return curve;
    return extended(curve, point.step, value);
  });
  return {
    ...metrics,
    curves,
    names: added.length > 0 ? [...metrics.names, ...added].sort() : metrics.names,
    last_step: Math.max(metrics.last_step, point.step),
  };
}

function extended(curve: MetricCurve, step: number, value: number): MetricCurve {
  const finite = Number.isFinite(value) ? value : null;
  return {
    ...curve,
    steps: [...curve.steps, step],
    first_steps: [...curve.first_steps, step],
    min: [...curve.min, finite],
    max: [...curve.max, finite],
    last: [...curve.last, finite],
    count: [...curve.count, 1],
    non_finite: [...curve.non_finite, finite === null ? 1 : 0],
  };
}

function emptyCurve(name: string): MetricCurve {
  return {
    name,
    branch: LINEAGE,
    steps: [],
    first_steps: [],
    min: [],
    max: [],
    last: [],
    count: [],
    non_finite: [],
  };
}

function isLineage({ branch }: MetricCurve): boolean {
  return branch === LINEAGE;
}

/**
 * Return the curves of one series for a chart; without a lineage the first curve is the main one.
 *
 * @param smoothing weight of the past in the moving average
 */
export function drawnCurves(curves: readonly MetricCurve[], smoothing = 0): Curve[] {
  const lineage = curves.find(isLineage) ?? curves[0];
  return curves.map((curve) => drawnCurve(curve, curve !== lineage, smoothing));
}

function drawnCurve(curve: MetricCurve, isBranch: boolean, smoothing: number): Curve {
  const { steps, last } = curve;
  return {
    slot: 0,
    label: isBranch ? `${curve.branch.replace("-", " ")}, abandoned` : null,
    isBranch,
    look: isBranch ? BRANCH : SINGLE,
    begins: curve.first_steps,
    x: steps,
    steps,
    last,
    smooth: smoothed(last, smoothing),
    min: curve.min,
    max: curve.max,
    count: curve.count,
    nonFinite: curve.non_finite,
  };
}
