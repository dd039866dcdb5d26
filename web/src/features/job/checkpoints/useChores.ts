// The newest chores of a job, moved on by live events.
import { useQuery, useQueryClient } from "@tanstack/react-query";
import type { Chore } from "@/shared/api/types";
import { useStream } from "@/shared/stream/useStream";
import { choresQuery } from "../api";
import { withProgress } from "./chores";

const NONE: Chore[] = [];

/** Other events of a chore make all of the job's page stale; its progress tells all of itself. */
export function useChores(jobId: string): Chore[] {
  const { queryKey } = choresQuery(jobId);
  const client = useQueryClient();
  useStream({
    event: (event) => {
      if (event.kind !== "chore_progress" || event.job_id !== jobId) return;
      client.setQueryData<Chore[]>(queryKey, (chores) => chores && withProgress(chores, event));
    },
  });
  return useQuery(choresQuery(jobId)).data ?? NONE;
}
