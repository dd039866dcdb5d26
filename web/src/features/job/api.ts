// Requests of the job page: stop, cancel, delete, and requests to the trainer.
import { api, ask } from "@/shared/api/client";
import type { components } from "@/shared/api/schema";
import { at } from "@/shared/job/api";

export type RequestKind = components["schemas"]["JobRequest"]["kind"];

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
