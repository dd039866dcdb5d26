// The newest operations of a job, updated by live events.
import { useQuery, useQueryClient } from "@tanstack/react-query";
import type { Operation } from "@/shared/api/types";
import { useStream } from "@/shared/stream/useStream";
import { operationsQuery } from "./api";
import { withEvent } from "./operations";

const NONE: readonly Operation[] = [];

/** Return the operations; events of progress and reasons update them, others make the page stale. */
export function useOperations(jobId: string): readonly Operation[] {
  const { queryKey } = operationsQuery(jobId);
  const client = useQueryClient();
  useStream({
    event: (event) => {
      if (event.job_id !== jobId) return;
      client.setQueryData<readonly Operation[]>(
        queryKey,
        (found) => found && withEvent(found, event),
      );
    },
  });
  return useQuery(operationsQuery(jobId)).data ?? NONE;
}
