// The newest chores of a job, moved on by live events.
import { useQuery, useQueryClient } from "@tanstack/react-query";
import type { Chore } from "@/shared/api/types";
import { useStream } from "@/shared/stream/useStream";
import { choresQuery } from "../api";
import { withEvent } from "./chores";

const NONE: readonly Chore[] = [];

/** Other events of a chore make all of the job's page stale; progress and reasons tell all of theirs. */
export function useChores(jobId: string): readonly Chore[] {
  const { queryKey } = choresQuery(jobId);
  const client = useQueryClient();
  useStream({
    event: (event) => {
      if (event.job_id !== jobId) return;
      client.setQueryData<readonly Chore[]>(queryKey, (found) => found && withEvent(found, event));
    },
  });
  return useQuery(choresQuery(jobId)).data ?? NONE;
}
