// One rank's log: how long it is, the lines in sight, and the lines that hold a text.
import {
  infiniteQueryOptions,
  type QueryClient,
  queryOptions,
  useInfiniteQuery,
  useQueries,
  useQuery,
  useQueryClient,
} from "@tanstack/react-query";
import { useEffect, useMemo } from "react";
import { api, ask } from "@/shared/api/client";
import { ApiError } from "@/shared/api/errors";
import type { components } from "@/shared/api/schema";
import { useStream } from "@/shared/stream/useStream";
import { CHUNK_LINES, chunksOf } from "./window";

export type LogPage = components["schemas"]["LogPage"];
export type LogLine = components["schemas"]["LogLine"];

/** Which log. */
export interface LogName {
  jobId: string;
  attempt: number;
  rank: number;
}

const MOST_MATCHES = 2000;
const SEARCH_LIMIT = 1000;

const keyOf = ({ jobId, attempt, rank }: LogName, ...more: readonly unknown[]) => [
  "logs",
  jobId,
  attempt,
  rank,
  ...more,
];

function readPage(
  name: LogName,
  query: { first_line?: number; limit: number },
  signal: AbortSignal,
) {
  const { jobId, attempt, rank } = name;
  return ask(
    api.GET("/api/v1/jobs/{job_id}/logs", {
      params: { path: { job_id: jobId }, query: { attempt, rank, ...query } },
      signal,
    }),
  );
}

/** Everything about the log but its lines. */
const headQuery = (name: LogName) =>
  queryOptions({
    queryKey: keyOf(name, "head"),
    queryFn: ({ signal }) => readPage(name, { limit: 1 }, signal),
    retry: (tries, error) => tries < 3 && !(error instanceof ApiError),
  });

/** The lines of one chunk; very long ones come in several pages. */
const chunkQuery = (name: LogName, chunk: number) =>
  queryOptions({
    queryKey: keyOf(name, "chunk", chunk),
    queryFn: async ({ signal }) => {
      const end = (chunk + 1) * CHUNK_LINES;
      const lines: LogLine[] = [];
      let from = chunk * CHUNK_LINES;
      while (from < end) {
        const page = await readPage(name, { first_line: from, limit: end - from }, signal);
        lines.push(...page.lines);
        const last = page.lines.at(-1);
        if (!last) break;
        from = last.number + 1;
      }
      return lines;
    },
  });

const searchQuery = (name: LogName, text: string) =>
  infiniteQueryOptions({
    queryKey: keyOf(name, "search", text),
    queryFn: ({ pageParam, signal }) =>
      ask(
        api.GET("/api/v1/jobs/{job_id}/logs/search", {
          params: {
            path: { job_id: name.jobId },
            query: {
              text,
              attempt: name.attempt,
              rank: name.rank,
              first_line: pageParam,
              limit: SEARCH_LIMIT,
            },
          },
          signal,
        }),
      ),
    initialPageParam: 0,
    getNextPageParam: (page) => page.next_line,
    enabled: text !== "",
  });

/** How long the log is, brought forward as output arrives. */
export function useLogHead(name: LogName) {
  const client = useQueryClient();
  const head = useQuery(headQuery(name));
  useStream({
    event: ({ kind, job_id, attempt, data }) => {
      if (kind !== "log" || job_id !== name.jobId || attempt !== name.attempt) return;
      const { rank, lines } = data;
      if (rank === name.rank && typeof lines === "number") lengthen(client, name, lines);
      else if (!head.data?.ranks.includes(Number(rank))) void readHead(client, name);
    },
  });
  return head;
}

function readHead(client: QueryClient, name: LogName): Promise<void> {
  return client.invalidateQueries({ queryKey: keyOf(name, "head") });
}

/** Note a new length, and read anew what was not full before. */
function lengthen(client: QueryClient, name: LogName, total: number): void {
  const { queryKey } = headQuery(name);
  const known = client.getQueryData(queryKey);
  client.setQueryData(queryKey, (old) => old && { ...old, total_lines: total });
  if (known?.first_error_line == null) void readHead(client, name);
  const grown = Math.floor((known?.total_lines ?? 0) / CHUNK_LINES);
  void client.invalidateQueries({
    queryKey: keyOf(name, "chunk"),
    predicate: ({ queryKey: key }) => Number(key[5]) >= grown,
  });
}

/** The lines in sight that have come, by their numbers. */
export function useLogLines(name: LogName, from: number, to: number): Map<number, string> {
  const queries = chunksOf({ from, to }).map((chunk) => chunkQuery(name, chunk));
  return useQueries({ queries, combine: byNumber });
}

function byNumber(chunks: readonly { data?: LogLine[] }[]): Map<number, string> {
  return new Map(
    chunks.flatMap((chunk) => chunk.data ?? []).map((line) => [line.number, line.text]),
  );
}

export interface Matches {
  lines: readonly number[];
  /** Whether the search goes on. */
  isSearching: boolean;
  /** Whether there are more than were looked for. */
  isCut: boolean;
}

/** The numbers of the lines that hold a text; the search goes on by itself. */
export function useLogSearch(name: LogName, text: string): Matches {
  const search = useInfiniteQuery(searchQuery(name, text));
  const { data, hasNextPage, isFetching, isError, fetchNextPage } = search;
  const lines = useMemo(
    () => data?.pages.flatMap((page) => page.lines.map((line) => line.number)) ?? [],
    [data],
  );
  const wantsMore = hasNextPage && lines.length < MOST_MATCHES;
  useEffect(() => {
    if (wantsMore && !isFetching && !isError) void fetchNextPage();
  }, [wantsMore, isFetching, isError, fetchNextPage]);
  return {
    lines,
    isSearching: text !== "" && (isFetching || wantsMore),
    isCut: hasNextPage && !wantsMore,
  };
}
