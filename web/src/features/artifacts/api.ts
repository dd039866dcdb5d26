// Artifacts of a job, by kind and by page, the newest first.
import { infiniteQueryOptions } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import { type ArtifactGroup, keys, pageOf } from "@/shared/api/queries";
import type { Artifact } from "@/shared/api/types";
import { at } from "@/shared/job/api";

const PAGE = 200;
const SHOWN = ["image", "histogram"];

export const artifactsQuery = (id: string, kind: ArtifactGroup) =>
  infiniteQueryOptions({
    queryKey: keys.artifacts(id, kind),
    queryFn: ({ pageParam, signal }) =>
      ask(
        api.GET("/api/v1/jobs/{job_id}/artifacts", {
          params: {
            ...at(id),
            query: {
              ...pageOf(pageParam, PAGE),
              ...(kind === "files" ? { without: SHOWN } : { kind }),
            },
          },
          signal,
        }),
      ),
    initialPageParam: "",
    getNextPageParam: (last) => last.next_page_token,
  });

export function contentAddress(jobId: string, artifact: Artifact): string {
  return `/api/v1/jobs/${jobId}/artifacts/${artifact.id}/content`;
}
