// One rank's log: its length, its visible lines, and its matches of a search.
import {
  infiniteQueryOptions,
  queryOptions,
  useInfiniteQuery,
  useQueries,
  useQuery,
} from "@tanstack/react-query";
import { useEffect, useMemo } from "react";
import { api, ask } from "@/shared/api/client";
import { ApiError, retryInterval } from "@/shared/api/errors";
import { REFRESH_PAUSE, useRefresher } from "@/shared/api/refresh";
import type { components } from "@/shared/api/schema";
import { useStream } from "@/shared/stream/useStream";
import { CHUNK_LINES, chunksOf, withOpenLine } from "./window";

export type LogPage = components["schemas"]["LogPage"];
export type LogLine = components["schemas"]["LogLine"];

/** Identifies a log. */
export interface LogName {
  jobId: string;
  attempt: number;
  rank: number;
}

const MAX_MATCHES = 2000;
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

/** Lines read from the end of a log: more than fit into a window. */
const TAIL_LINES = 200;

/** The length of the log and its last lines, both of the same moment. */
const tailQuery = (name: LogName) =>
  queryOptions({
    queryKey: keyOf(name, "tail"),
    queryFn: ({ signal }) => readPage(name, { limit: TAIL_LINES }, signal),
    select: withOpenLine,
    retry: (tries, error) => tries < 3 && !(error instanceof ApiError),
  });

/** The lines of one chunk up to `end`; a chunk of very long lines takes several pages. */
const chunkQuery = (name: LogName, chunk: number, end: number) =>
  queryOptions({
    queryKey: keyOf(name, "chunk", chunk),
    queryFn: async ({ signal }) => {
      const after = (chunk + 1) * CHUNK_LINES;
      const lines: LogLine[] = [];
      let from = chunk * CHUNK_LINES;
      while (from < after) {
        const page = await readPage(name, { first_line: from, limit: after - from }, signal);
        lines.push(...page.lines);
        const last = page.lines.at(-1);
        if (!last) break;
        from = last.number + 1;
      }
      return lines;
    },
    staleTime: Number.POSITIVE_INFINITY,
    // A chunk that was read before it was full is read again until it holds its visible lines.
    refetchInterval: (query) =>
      isShort(query.state.data, end) ? REFRESH_PAUSE : retryInterval(query),
  });

function isShort(lines: readonly LogLine[] | undefined, end: number): boolean {
  return lines !== undefined && (lines.at(-1)?.number ?? -1) < end - 1;
}

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

/**
 * The end of the log, read again as output arrives.
 *
 * One answer contains the length and the last lines, so that a followed log has no empty row.
 */
export function useLogTail(name: LogName) {
  const refresher = useRefresher();
  const tail = useQuery(tailQuery(name));
  useStream({
    event: ({ kind, job_id, attempt, data }) => {
      if (kind !== "log" || job_id !== name.jobId || attempt !== name.attempt) return;
      const rank = Number(data.rank);
      if (rank === name.rank || !tail.data?.ranks.includes(rank)) {
        refresher.refresh(tailQuery(name).queryKey);
      }
    },
    reset: () => refresher.refresh(tailQuery(name).queryKey),
  });
  return tail;
}

/** Return the loaded lines from `from` up to `to`, by number. */
export function useLogLines(
  name: LogName,
  tail: LogPage,
  from: number,
  to: number,
): Map<number, string> {
  const last = tail.lines;
  const before = Math.min(to, last[0]?.number ?? to);
  const queries = chunksOf({ from, to: before }).map((chunk) =>
    chunkQuery(name, chunk, Math.min(before, (chunk + 1) * CHUNK_LINES)),
  );
  const chunks = useQueries({ queries, combine: linesOf });
  return useMemo(
    () => new Map([...chunks, ...last].map((line) => [line.number, line.text])),
    [chunks, last],
  );
}

function linesOf(chunks: readonly { data?: LogLine[] }[]): LogLine[] {
  return chunks.flatMap((chunk) => chunk.data ?? []);
}

export interface Matches {
  lines: readonly number[];
  /** Whether the search still runs. */
  isSearching: boolean;
  /** Whether more matches exist than were read. */
  isCut: boolean;
}

/** Search the whole log, page by page, and return the numbers of the lines found so far. */
export function useLogSearch(name: LogName, text: string): Matches {
  const search = useInfiniteQuery(searchQuery(name, text));
  const { data, hasNextPage, isFetching, isError, fetchNextPage } = search;
  const lines = useMemo(
    () => data?.pages.flatMap((page) => page.lines.map((line) => line.number)) ?? [],
    [data],
  );
  const wantsMore = hasNextPage && lines.length < MAX_MATCHES;
  useEffect(() => {
    if (wantsMore && !isFetching && !isError) void fetchNextPage();
  }, [wantsMore, isFetching, isError, fetchNextPage]);
  return {
    lines,
    isSearching: text !== "" && (isFetching || wantsMore),
    isCut: hasNextPage && !wantsMore,
  };
}
