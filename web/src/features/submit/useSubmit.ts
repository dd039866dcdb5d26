// Submits a draft; a repeat of the same draft creates no second job.

import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useMemo } from "react";
import { useNavigate } from "react-router";
import { api, ask } from "@/shared/api/client";
import { randomKey } from "@/shared/api/key";
import { keys } from "@/shared/api/queries";
import type { JsonObject } from "@/shared/format/document";
import { bodyOf } from "./plan/usePlan";

export function useSubmit(spec: JsonObject) {
  const client = useQueryClient();
  const navigate = useNavigate();
  // biome-ignore lint/correctness/useExhaustiveDependencies: each draft has a key of its own
  const key = useMemo(randomKey, [spec]);
  return useMutation({
    mutationFn: () =>
      ask(
        api.POST("/api/v1/jobs", {
          body: bodyOf(spec),
          params: { header: { "idempotency-key": key } },
        }),
      ),
    onSuccess: (job) => {
      client.setQueryData(keys.jobView(job.id), job);
      void navigate(`/jobs/${job.id}`);
    },
  });
}
