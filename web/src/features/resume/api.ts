// The resume of a job, and its preview.
import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import { keys } from "@/shared/api/queries";
import type { components } from "@/shared/api/schema";
import { at } from "@/shared/job/api";

export type ResumeRequest = components["schemas"]["ResumeRequest"];

/** What a resume would change; nothing is stored. */
export const previewQuery = (id: string, request: ResumeRequest) =>
  queryOptions({
    queryKey: keys.jobPart(id, "preview", request),
    queryFn: ({ signal }) => postResume(id, { ...request, dry_run: true }, signal),
    placeholderData: keepPreviousData,
    retry: false,
    staleTime: 0,
  });

export function postResume(id: string, body: ResumeRequest, signal?: AbortSignal) {
  return ask(api.POST("/api/v1/jobs/{job_id}/resume", { params: at(id), body, signal }));
}
