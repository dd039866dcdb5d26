// The checkpoint from which the job would resume now.
import { useQuery } from "@tanstack/react-query";
import { resumeOptionsQuery } from "./api";

/** Undefined while it is not known; null when there is none. */
export function useLastCheckpoint(id: string): { id: string; step: number } | null | undefined {
  const { data } = useQuery(resumeOptionsQuery(id));
  if (!data) return undefined;
  return data.checkpoint_id ? { id: data.checkpoint_id, step: data.step } : null;
}
