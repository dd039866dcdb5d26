// Requests that several tabs of a job share.
import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import { allPages, keys, pageOf } from "@/shared/api/queries";
import type { components } from "@/shared/api/schema";
import type { Job } from "@/shared/api/types";

/** Parameters of a path below one job. */
export const at = (id: string) => ({ path: { job_id: id } });

/** All attempts, the newest first. */
export const attemptsQuery = (id: string) =>
  queryOptions({
    queryKey: keys.jobPart(id, "attempts"),
    queryFn: ({ signal }) =>
      allPages((query) =>
        ask(api.GET("/api/v1/jobs/{job_id}/attempts", { params: { ...at(id), query }, signal })),
      ),
  });

export const checkpointsQuery = (id: string) =>
  infiniteQueryOptions({
    queryKey: keys.jobPart(id, "checkpoints"),
    queryFn: ({ pageParam, signal }) =>
      ask(
        api.GET("/api/v1/jobs/{job_id}/checkpoints", {
          params: { ...at(id), query: pageOf(pageParam) },
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

/** Whether no other job has the name. */
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

/** Change the priority to a number or a named priority; the server validates it. */
export function postPriority(id: string, priority: number | string): Promise<Job> {
  const body = { priority } as components["schemas"]["PriorityRequest"];
  return ask(api.POST("/api/v1/jobs/{job_id}/priority", { params: at(id), body }));
}
