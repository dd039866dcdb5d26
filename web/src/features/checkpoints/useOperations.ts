// The newest operations of a job, moved on by live events.
import { useQuery, useQueryClient } from "@tanstack/react-query";
import type { Operation } from "@/shared/api/types";
import { useStream } from "@/shared/stream/useStream";
import { operationsQuery } from "./api";
import { withEvent } from "./operations";

const NONE: readonly Operation[] = [];

/** Other events of an operation make all of the job's page stale; progress and reasons tell all of theirs. */
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
