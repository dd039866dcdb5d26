// The checkpoint from which the job would resume now.
import { useQuery } from "@tanstack/react-query";
import { resumeOptionsQuery } from "./api";

/** Return the newest checkpoint; undefined until it is known, null if the job has none. */
export function useLastCheckpoint(id: string): { id: string; step: number } | null | undefined {
  const { data } = useQuery(resumeOptionsQuery(id));
  if (!data) return undefined;
  return data.checkpoint_id ? { id: data.checkpoint_id, step: data.step } : null;
}
