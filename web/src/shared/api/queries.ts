// Every query of the dashboard: its key and its request. Live events write to the same keys.
import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { api, ask } from "./client";
import { isUnauthenticated } from "./errors";
import type { JobState, Session } from "./types";

/** Most jobs that one chart can distinguish; the server accepts no more. */
export const MAX_COMPARED = 8;

/** Images, histograms, or `files`: every other artifact. */
export type ArtifactGroup = "image" | "histogram" | "files";

/** Which jobs a table shows; an empty field does not restrict. */
export interface JobFilter {
  states: JobState[];
  tags: string[];
  /** Name of a project; empty for all. */
  project: string;
  search: string;
  /** Name of a user; empty or `EVERYONE` for all. */
  owner: string;
}

/** The owner of a filter that explicitly does not restrict; no user can have this name. */
export const EVERYONE = "*";

/** Return the only owner of the jobs of a filter; null for the jobs of all. */
export function ownerOf({ owner }: Pick<JobFilter, "owner">): string | null {
  return owner === "" || owner === EVERYONE ? null : owner;
}

/** Words of names, tags and ids, and values such as `lr=0.01`. */
export function legalSearch(text: string): string {
  return text
    .replaceAll(/\p{Cc}/gu, "")
    .replaceAll(/^ +/g, "")
    .slice(0, 200);
}

export const keys = {
  session: ["session"] as const,
  schema: ["schema"] as const,
  jobs: ["jobs"] as const,
  jobCounts: ["job-counts"] as const,
  jobList: (filter: JobFilter) => ["jobs", filter] as const,
  /** The key of all data of one job; its parts are `[...keys.job(id), "attempts"]`... */
  job: (id: string) => ["job", id] as const,
  jobView: (id: string) => ["job", id, "view"] as const,
  jobPart: (id: string, part: string, ...more: readonly unknown[]) =>
    ["job", id, part, ...more] as const,
  /** Separate from the other parts of a job, because their events contain no artifact. */
  artifacts: (id: string, ...kind: readonly ArtifactGroup[]) => ["artifacts", id, ...kind] as const,
  nodes: ["nodes"] as const,
  nodeMetrics: (name: string) => ["node-metrics", name] as const,
  audit: ["audit"] as const,
  projects: ["projects"] as const,
  ownSecrets: ["own secrets"] as const,
  sources: ["sources"] as const,
  queue: ["queue"] as const,
  goodput: ["goodput"] as const,
  plan: ["plan"] as const,
  tokens: ["tokens"] as const,
  users: ["users"] as const,
  /** The browser sessions of the caller. */
  sessions: ["sessions"] as const,
  loginWays: ["login-ways"] as const,
  compare: ["compare"] as const,
};

/** The session; null without one. */
export const sessionQuery = queryOptions({
  queryKey: keys.session,
  queryFn: async ({ signal }): Promise<Session | null> => {
    try {
      return await ask(api.GET("/api/v1/auth/session", { signal }));
    } catch (error) {
      if (isUnauthenticated(error)) return null;
      throw error;
    }
  },
  staleTime: Number.POSITIVE_INFINITY,
});

export const jobsQuery = (filter: JobFilter) =>
  infiniteQueryOptions({
    queryKey: keys.jobList(filter),
    queryFn: ({ pageParam, signal }) =>
      ask(
        api.GET("/api/v1/jobs", {
          params: {
            query: {
              order: "active",
              ...pageOf(pageParam),
              ...(filter.states.length ? { state: filter.states } : {}),
              ...(filter.tags.length ? { tag: filter.tags } : {}),
              ...(filter.project ? { project: filter.project } : {}),
              ...(filter.search ? { search: filter.search } : {}),
              ...ownerQuery(filter),
            },
          },
          signal,
        }),
      ),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_page_token,
  });

function ownerQuery(filter: Pick<JobFilter, "owner">): { owner?: string } {
  const owner = ownerOf(filter);
  return owner === null ? {} : { owner };
}

/** Number of jobs in each state, for the filter without its states. */
export const jobCountsQuery = ({ tags, project, search, owner }: JobFilter) =>
  queryOptions({
    queryKey: [...keys.jobCounts, { tags, project, search, owner }] as const,
    queryFn: async ({ signal }) => {
      const query = {
        ...(tags.length ? { tag: tags } : {}),
        ...(project ? { project } : {}),
        ...(search ? { search } : {}),
        ...ownerQuery({ owner }),
      };
      const found = await ask(api.GET("/api/v1/jobs/counts", { params: { query }, signal }));
      return found.by_state;
    },
  });

export const jobQuery = (id: string) =>
  queryOptions({
    queryKey: keys.jobView(id),
    queryFn: ({ signal }) =>
      ask(api.GET("/api/v1/jobs/{job_id}", { params: { path: { job_id: id } }, signal })),
  });

/** The JSON Schema of the job spec; it changes only with the server. */
export const schemaQuery = queryOptions({
  queryKey: keys.schema,
  queryFn: ({ signal }) => ask(api.GET("/api/v1/schema/job", { signal })),
  staleTime: Number.POSITIVE_INFINITY,
});

export const nodesQuery = queryOptions({
  queryKey: keys.nodes,
  queryFn: ({ signal }) =>
    allPages((query) => ask(api.GET("/api/v1/nodes", { params: { query }, signal }))),
});

export const sourcesQuery = queryOptions({
  queryKey: keys.sources,
  queryFn: ({ signal }) =>
    allPages((query) => ask(api.GET("/api/v1/sources", { params: { query }, signal }))),
});

const ENDED_REQUESTS = 10;

/** The node requests of a source: every open one, then the newest ended ones. */
export const nodeRequestsQuery = (name: string) =>
  queryOptions({
    queryKey: [...keys.sources, name, "requests"],
    queryFn: async ({ signal }) => {
      const read = (query: PageQuery & { open: boolean }) =>
        ask(
          api.GET("/api/v1/sources/{name}/requests", { params: { path: { name }, query }, signal }),
        );
      const [open, ended] = await Promise.all([
        allPages((query) => read({ ...query, open: true })),
        read({ page_size: ENDED_REQUESTS, open: false }),
      ]);
      return [...open, ...ended.items];
    },
  });

export const projectsQuery = queryOptions({
  queryKey: keys.projects,
  queryFn: ({ signal }) =>
    allPages((query) => ask(api.GET("/api/v1/projects", { params: { query }, signal }))),
});

export const projectQuery = (name: string) =>
  queryOptions({
    queryKey: [...keys.projects, name] as const,
    queryFn: ({ signal }) =>
      ask(api.GET("/api/v1/projects/{name}", { params: { path: { name } }, signal })),
  });

/** The members of a project, its service accounts included. */
export const membersQuery = (name: string) =>
  queryOptions({
    queryKey: [...keys.projects, name, "members"] as const,
    queryFn: ({ signal }) =>
      allPages((query) =>
        ask(
          api.GET("/api/v1/projects/{name}/members", { params: { path: { name }, query }, signal }),
        ),
      ),
  });

/** The groups of the issuer with a role in a project. */
export const groupsQuery = (name: string) =>
  queryOptions({
    queryKey: [...keys.projects, name, "groups"] as const,
    queryFn: ({ signal }) =>
      allPages((query) =>
        ask(
          api.GET("/api/v1/projects/{name}/groups", { params: { path: { name }, query }, signal }),
        ),
      ),
  });

/** The curves of a node over the last hours; `names` is a comma-separated list of series. */
export const nodeMetricsQuery = (name: string, hours: number, names: string) =>
  queryOptions({
    queryKey: [...keys.nodeMetrics(name), hours, names] as const,
    queryFn: ({ signal }) =>
      ask(
        api.GET("/api/v1/nodes/{name}/metrics", {
          params: { path: { name }, query: { hours, names } },
          signal,
        }),
      ),
  });

/** The caller's tokens, or those of all users and machines. */
export const tokensQuery = (all: boolean) =>
  queryOptions({
    queryKey: [...keys.tokens, { all }] as const,
    queryFn: ({ signal }) =>
      allPages((query) =>
        ask(api.GET("/api/v1/tokens", { params: { query: { ...query, all } }, signal })),
      ),
  });

export const usersQuery = queryOptions({
  queryKey: keys.users,
  queryFn: ({ signal }) =>
    allPages((query) => ask(api.GET("/api/v1/users", { params: { query }, signal }))),
});

/** The browser sessions of the caller, the newest first. */
export const sessionsQuery = queryOptions({
  queryKey: keys.sessions,
  queryFn: ({ signal }) =>
    allPages((query) => ask(api.GET("/api/v1/auth/sessions", { params: { query }, signal }))),
});

type PageQuery = { page_size: number; page_token?: string };

/** Return the parameters of one page of a list; the first one has no token. */
export function pageOf(token: string | null, page_size = 100): PageQuery {
  return token ? { page_size, page_token: token } : { page_size };
}

/** Return the items of all pages of a short list. */
export async function allPages<Item>(
  read: (query: PageQuery) => Promise<{ items: Item[]; next_page_token?: string | null }>,
): Promise<Item[]> {
  const items: Item[] = [];
  let token: string | null = null;
  do {
    const next = await read(pageOf(token, 200));
    items.push(...next.items);
    token = next.next_page_token ?? null;
  } while (token !== null);
  return items;
}
