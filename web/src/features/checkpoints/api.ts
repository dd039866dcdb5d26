// Requests of the checkpoints tab: one checkpoint, its operations, forks, exports.
import { queryOptions } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import { keys } from "@/shared/api/queries";
import type { components } from "@/shared/api/schema";
import type { ExportRequest } from "@/shared/api/types";
import type { CheckpointVerb } from "./operations";

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

/** The newest operations on the job's checkpoints, the newest first. */
export const operationsQuery = (id: string) =>
  queryOptions({
    queryKey: keys.jobPart(id, "operations"),
    queryFn: async ({ signal }) => {
      const query = { job: id, page_size: 200 };
      const found = await ask(api.GET("/api/v1/operations", { params: { query }, signal }));
      return found.items;
    },
  });

/** Perform an action: pin and unpin return the checkpoint, the others an operation that events update. */
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

/** Fork a checkpoint; the key makes a repeat harmless, and a dry run needs none. */
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
