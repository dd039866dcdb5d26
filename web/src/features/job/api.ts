// Requests of the job page: stop, cancel, delete, and requests to the trainer.
import { queryOptions } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import { keys } from "@/shared/api/queries";
import type { components } from "@/shared/api/schema";
import type { Job } from "@/shared/api/types";
import { at } from "@/shared/job/api";
import type { EndVerb } from "@/shared/job/verbs";

/** The position of a job in the queue; without an entry while it does not wait. */
export const queuePlaceQuery = (id: string) =>
  queryOptions({
    queryKey: keys.jobPart(id, "queue"),
    queryFn: ({ signal }) =>
      ask(api.GET("/api/v1/jobs/{job_id}/queue", { params: at(id), signal })),
  });

type RequestKind = components["schemas"]["JobRequest"]["kind"];

/** Stop or cancel a job and return it. */
export async function postEnd(id: string, verb: EndVerb, reason: string): Promise<Job> {
  const request = { params: at(id), body: { reason } };
  if (verb === "stop") return ask(api.POST("/api/v1/jobs/{job_id}/stop", request));
  return (await ask(api.POST("/api/v1/jobs/{job_id}/cancel", request))).job;
}

export function postRequest(id: string, kind: RequestKind) {
  return ask(api.POST("/api/v1/jobs/{job_id}/requests", { params: at(id), body: { kind } }));
}

export function deleteJob(id: string, checkpoints: "keep" | "delete") {
  return ask(
    api.DELETE("/api/v1/jobs/{job_id}", { params: { ...at(id), query: { checkpoints } } }),
  );
}
