// Requests of the queue page.
import { infiniteQueryOptions } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import { keys, pageOf } from "@/shared/api/queries";
import type { components } from "@/shared/api/schema";
import type { WhatIf } from "@/shared/api/types";
import type { JsonObject } from "@/shared/format/document";

const PAGE = 200;

/** The waiting jobs, in order. */
export const queueQuery = infiniteQueryOptions({
  queryKey: keys.queue,
  queryFn: ({ pageParam, signal }) =>
    ask(api.GET("/api/v1/queue", { params: { query: pageOf(pageParam, PAGE) }, signal })),
  initialPageParam: "",
  getNextPageParam: (page) => page.next_page_token,
});

/** Forecast the start of a spec if it were submitted now; the server validates it. */
export function postWhatIf(spec: JsonObject): Promise<WhatIf> {
  const body = spec as components["schemas"]["JobSpecInput"];
  return ask(api.POST("/api/v1/queue/what-if", { body }));
}
