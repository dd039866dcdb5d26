// What a job page reads and does, beside the job itself.
import { infiniteQueryOptions, keepPreviousData, queryOptions } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import { allPages, keys } from "@/shared/api/queries";
import type { components } from "@/shared/api/schema";
import type { ExportRequest, Metrics } from "@/shared/api/types";
import type { Extent } from "@/shared/ui/chart/curve";
import type { CheckpointVerb } from "./checkpoints/operations";

export type ResumeRequest = components["schemas"]["ResumeRequest"];
export type RequestKind = components["schemas"]["JobRequest"]["kind"];

const PAGE_SIZE = 100;
const MAX_POINTS = 1000;

const at = (id: string) => ({ path: { job_id: id } });
const page = (token: string | null, size = PAGE_SIZE) => ({
  page_size: size,
  ...(token ? { page_token: token } : {}),
});

/** All attempts, the newest first. */
export const attemptsQuery = (id: string) =>
  queryOptions({
    queryKey: keys.jobPart(id, "attempts"),
    queryFn: ({ signal }) =>
      allPages((token) =>
        ask(
          api.GET("/api/v1/jobs/{job_id}/attempts", {
            params: { ...at(id), query: page(token, 200) },
            signal,
          }),
        ),
      ),
  });

export const checkpointsQuery = (id: string) =>
  infiniteQueryOptions({
    queryKey: keys.jobPart(id, "checkpoints"),
    queryFn: ({ pageParam, signal }) =>
      ask(
        api.GET("/api/v1/jobs/{job_id}/checkpoints", {
          params: { ...at(id), query: page(pageParam) },
          signal,
        }),
      ),
    initialPageParam: "",
    getNextPageParam: (last) => last.next_page_token,
  });

/** One checkpoint with its manifest, which never changes. */
export const checkpointQuery = (id: string) =>
  queryOptions({
    queryKey: ["checkpoint", id] as const,
    queryFn: ({ signal }) =>
      ask(
        api.GET("/api/v1/checkpoints/{checkpoint_id}", {
          params: { path: { checkpoint_id: id } },
          signal,
        }),
      ),
    staleTime: Number.POSITIVE_INFINITY,
  });

/** What is and was done to the job's checkpoints, the newest first; older ones are not shown. */
export const operationsQuery = (id: string) =>
  queryOptions({
    queryKey: keys.jobPart(id, "operations"),
    queryFn: async ({ signal }) => {
      const query = { job: id, page_size: 200 };
      const found = await ask(api.GET("/api/v1/operations", { params: { query }, signal }));
      return found.items;
    },
  });

/** Pin and unpin answer with the checkpoint, the others with an operation; events bring what follows. */
export async function actOnCheckpoint(
  id: string,
  verb: Exclude<CheckpointVerb, "export">,
): Promise<void> {
  const params = { path: { checkpoint_id: id } };
  if (verb === "delete") await ask(api.DELETE("/api/v1/checkpoints/{checkpoint_id}", { params }));
  else if (verb === "pin")
    await ask(api.POST("/api/v1/checkpoints/{checkpoint_id}/pin", { params }));
  else if (verb === "unpin")
    await ask(api.POST("/api/v1/checkpoints/{checkpoint_id}/unpin", { params }));
  else await ask(api.POST("/api/v1/checkpoints/{checkpoint_id}/verify", { params }));
}

/** The key makes a repeat harmless; a dry run needs none. */
export function postFork(
  id: string,
  body: components["schemas"]["ForkRequest"],
  key?: string,
): Promise<components["schemas"]["ForkReply"]> {
  const params = { path: { checkpoint_id: id }, header: { "idempotency-key": key } };
  return ask(api.POST("/api/v1/checkpoints/{checkpoint_id}/fork", { params, body }));
}

export async function cancelOperation(id: string): Promise<void> {
  await ask(
    api.POST("/api/v1/operations/{operation_id}/cancel", {
      params: { path: { operation_id: id } },
    }),
  );
}

export function postExport(id: string, body: ExportRequest) {
  return ask(
    api.POST("/api/v1/checkpoints/{checkpoint_id}/export", {
      params: { path: { checkpoint_id: id } },
      body,
    }),
  );
}

export const eventsQuery = (id: string) =>
  infiniteQueryOptions({
    queryKey: keys.jobPart(id, "events"),
    queryFn: ({ pageParam, signal }) =>
      ask(
        api.GET("/api/v1/jobs/{job_id}/events", {
          params: { ...at(id), query: page(pageParam) },
          signal,
        }),
      ),
    initialPageParam: "",
    getNextPageParam: (last) => last.next_page_token,
  });

export const resumeOptionsQuery = (id: string) =>
  queryOptions({
    queryKey: keys.jobPart(id, "resume-options"),
    queryFn: ({ signal }) =>
      ask(api.GET("/api/v1/jobs/{job_id}/resume-options", { params: at(id), signal })),
    staleTime: 0,
  });

/** What a resume would change; nothing is stored. */
export const previewQuery = (id: string, request: ResumeRequest) =>
  queryOptions({
    queryKey: keys.jobPart(id, "preview", request),
    queryFn: ({ signal }) => postResume(id, { ...request, dry_run: true }, signal),
    placeholderData: keepPreviousData,
    retry: false,
    staleTime: 0,
  });

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

export function postResume(id: string, body: ResumeRequest, signal?: AbortSignal) {
  return ask(api.POST("/api/v1/jobs/{job_id}/resume", { params: at(id), body, signal }));
}

export function postStop(id: string, reason: string) {
  return ask(api.POST("/api/v1/jobs/{job_id}/stop", { params: at(id), body: { reason } }));
}

export function postCancel(id: string, reason: string) {
  return ask(api.POST("/api/v1/jobs/{job_id}/cancel", { params: at(id), body: { reason } }));
}

export function postRequest(id: string, kind: RequestKind) {
  return ask(api.POST("/api/v1/jobs/{job_id}/requests", { params: at(id), body: { kind } }));
}

export function deleteJob(id: string, checkpoints: "keep" | "delete") {
  return ask(
    api.DELETE("/api/v1/jobs/{job_id}", { params: { ...at(id), query: { checkpoints } } }),
  );
}

/** Whether the name alone names the job: others may have the same one. */
export const nameIsUniqueQuery = (name: string) =>
  queryOptions({
    queryKey: ["name-is-unique", name],
    queryFn: async ({ signal }) => {
      const found = await ask(
        api.GET("/api/v1/jobs", { params: { query: { name, page_size: 2 } }, signal }),
      );
      return found.items.length === 1;
    },
  });
