// How command lines name a job and its checkpoints.

import { useQuery } from "@tanstack/react-query";
import type { Job } from "@/shared/api/types";
import { count } from "@/shared/format/numbers";
import { nameIsUniqueQuery } from "./api";

/** Return the job's name if it is unique, else its id. */
export function useReference(job: Pick<Job, "id" | "name">): string {
  const { data: isUnique } = useQuery(nameIsUniqueQuery(job.name));
  return isUnique ? job.name : job.id;
}

/** `JOB@a2.step-400` from a checkpoint's id. */
export function checkpointReference(job: string, checkpointId: string): string {
  const place = checkpointId.split(".").slice(-2).join(".");
  return `${job}@${place}`;
}

/** Whether a checkpoint belongs to this job: a fork starts from a checkpoint of another job. */
export function isOwn(checkpointId: string | null, jobId: string): boolean {
  return checkpointId?.startsWith(`${jobId}.`) ?? false;
}

/** The parent checkpoint of an attempt as text. */
export function originWords(checkpointId: string, jobId: string): string {
  const words = checkpointWords(checkpointId);
  return isOwn(checkpointId, jobId) ? words : `${words} of another job`;
}

/** Used instead of an id: the newest checkpoint of the job's lineage. */
export const NEWEST = "newest";

/** 400 from a checkpoint's id. */
export function stepOf(checkpointId: string): number {
  return Number(/\.step-(\d+)$/.exec(checkpointId)?.[1] ?? 0);
}

/** `step 400 of attempt 2` from a checkpoint's id. */
export function checkpointWords(checkpointId: string): string {
  const match = /\.a(\d+)\.step-(\d+)$/.exec(checkpointId);
  if (!match) return checkpointId;
  return `step ${count(Number(match[2]))} of attempt ${match[1]}`;
}
