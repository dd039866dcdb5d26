// The events of a job, by page.
import { infiniteQueryOptions } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import { keys, pageOf } from "@/shared/api/queries";
import { at } from "@/shared/job/api";

export const eventsQuery = (id: string) =>
  infiniteQueryOptions({
    queryKey: keys.jobPart(id, "events"),
    queryFn: ({ pageParam, signal }) =>
      ask(
        api.GET("/api/v1/jobs/{job_id}/events", {
          params: { ...at(id), query: pageOf(pageParam) },
          signal,
        }),
      ),
    initialPageParam: "",
    getNextPageParam: (last) => last.next_page_token,
  });
