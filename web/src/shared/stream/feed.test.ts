import { QueryClient } from "@tanstack/react-query";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { type JobFilter, jobQuery, keys } from "@/shared/api/queries";
import type { Job, JobSummary, StreamItem } from "@/shared/api/types";
import { BATCH_MILLISECONDS, Feed } from "./feed";
import type { JobPage } from "./jobs";

const ALL: JobFilter = { states: [], tags: [], project: "", search: "", owner: "" };
const row = (id: string, state = "running") =>
  ({ id, name: id, tags: [], state, progress: { step: 0 } }) as unknown as JobSummary;
const event = (kind: string, job_id: string | null, data = {}) =>
  ({ kind, job_id, data, at: "2026-01-01T00:00:00Z" }) as unknown as StreamItem;

let client: QueryClient;
let feed: Feed;
const fetched = vi.fn();

beforeEach(() => {
  vi.useFakeTimers();
  fetched.mockReset();
  client = new QueryClient({ defaultOptions: { queries: { retry: false } } });
  client.setQueryData(keys.jobList(ALL), {
    pages: [{ items: [row("b"), row("a")], next_page_token: null }],
    pageParams: [""],
  });
  feed = new Feed(client, (id) => ({
    ...jobQuery(id),
    queryFn: async () => {
      fetched(id);
      return row(id, "queued") as Job;
    },
  }));
});

afterEach(() => vi.useRealTimers());

const rows = () =>
  client.getQueryData<{ pages: JobPage[] }>(keys.jobList(ALL))?.pages.flatMap((p) => p.items) ?? [];
const flush = () => vi.advanceTimersByTimeAsync(BATCH_MILLISECONDS);

describe("the feed", () => {
  it("applies a burst of points together, without a request", async () => {
    let writes = 0;
    const stop = client.getQueryCache().subscribe(({ type }) => {
      writes += type === "updated" ? 1 : 0;
    });
    for (let step = 1; step <= 100; step += 1) {
      feed.event(event("metrics", "a", { progress: { step } }));
    }
    await flush();
    stop();
    expect(rows().map((job) => job.progress.step)).toEqual([0, 100]);
    expect(writes).toBe(1);
    expect(fetched).not.toHaveBeenCalled();
  });

  it("reads a new job once, however many events it has, and puts it on top", async () => {
    feed.event(event("submitted", "c"));
    feed.event(event("queued", "c"));
    await flush();
    expect(fetched.mock.calls).toEqual([["c"]]);
    expect(rows().map((job) => job.id)).toEqual(["c", "b", "a"]);
  });

  it("leaves jobs of pages that were not read alone", async () => {
    feed.event(event("metrics", "unseen", { progress: { step: 3 } }));
    await flush();
    expect(fetched).not.toHaveBeenCalled();
    expect(rows()).toHaveLength(2);
  });

  it("removes a deleted job", async () => {
    feed.event(event("job_deleted", "b"));
    await flush();
    expect(rows().map((job) => job.id)).toEqual(["a"]);
  });

  it("reads the list again after changes of very many jobs", async () => {
    const invalidate = vi.spyOn(client, "invalidateQueries");
    for (let number = 0; number < 50; number += 1) feed.event(event("submitted", `n${number}`));
    await flush();
    expect(fetched).not.toHaveBeenCalled();
    expect(invalidate).toHaveBeenCalledWith({ queryKey: keys.jobs });
  });

  it("reads nodes again when their slots change", async () => {
    client.setQueryData(keys.nodes, []);
    feed.event(event("metrics", "a", {}));
    await flush();
    expect(client.getQueryState(keys.nodes)?.isInvalidated).toBe(false);
    feed.event(event("node_offline", null));
    await flush();
    expect(client.getQueryState(keys.nodes)?.isInvalidated).toBe(true);
  });

  it("reads only the ranks again when their times arrive", async () => {
    const [ranks, ledger] = [keys.jobPart("a", "ranks"), keys.jobPart("a", "goodput")];
    client.setQueryData(ranks, {});
    client.setQueryData(ledger, {});
    feed.event(event("rank_times", "a", {}));
    feed.event(event("metrics", "a", {}));
    await flush();
    expect(client.getQueryState(ranks)?.isInvalidated).toBe(true);
    expect(client.getQueryState(ledger)?.isInvalidated).toBe(false);
    feed.event(event("rank_times", "a", {}));
    feed.event(event("straggler_found", "a", {}));
    await flush();
    expect(client.getQueryState(ledger)?.isInvalidated).toBe(true);
  });

  it("reads only the artifacts of the stored kinds again", async () => {
    const lists = [
      keys.artifacts("a", "image"),
      keys.artifacts("a", "histogram"),
      keys.artifacts("a", "files"),
    ];
    const ledger = keys.jobPart("a", "goodput");
    for (const key of [...lists, ledger]) client.setQueryData(key, {});
    const stale = () => lists.map((key) => client.getQueryState(key)?.isInvalidated);
    feed.event(event("placed", "a"));
    await flush();
    expect(client.getQueryState(ledger)?.isInvalidated).toBe(true);
    expect(stale()).toEqual([false, false, false]);
    client.setQueryData(ledger, {});
    feed.event(event("artifacts", "a", { count: 2, group: "histogram" }));
    await flush();
    expect(stale()).toEqual([false, true, false]);
    expect(client.getQueryState(ledger)?.isInvalidated).toBe(false);
    feed.event(event("artifacts", "a", { count: 2 }));
    await flush();
    expect(stale()).toEqual([true, true, true]);
  });

  it("reads projects again when their settings change, not when jobs start and end", async () => {
    client.setQueryData(keys.projects, []);
    for (const kind of ["submitted", "placed", "running", "attempt_ended", "job_ended"]) {
      feed.event(event(kind, "a"));
    }
    await flush();
    expect(client.getQueryState(keys.projects)?.isInvalidated).toBe(false);
    feed.event(event("project_changed", null));
    await flush();
    expect(client.getQueryState(keys.projects)?.isInvalidated).toBe(true);
  });

  it("reads roles again when members change", async () => {
    client.setQueryData(keys.projects, []);
    client.setQueryData(keys.session, null);
    feed.event(event("members_changed", null, { project: "vision", user: "ada" }));
    await flush();
    expect(client.getQueryState(keys.projects)?.isInvalidated).toBe(true);
    expect(client.getQueryState(keys.session)?.isInvalidated).toBe(true);
  });

  it.each([
    ["service_token_changed", ["tokens", "nightly@vision"]],
    ["limits_changed", ["members"]],
    ["secret_changed", ["secrets"]],
  ] as const)("reads a part of a project again after %s", async (kind, part) => {
    const key = [...keys.projects, "vision", ...part];
    client.setQueryData(key, []);
    client.setQueryData(keys.session, null);
    feed.event(event(kind, null, { project: "vision" }));
    await flush();
    expect(client.getQueryState(key)?.isInvalidated).toBe(true);
    expect(client.getQueryState(keys.session)?.isInvalidated).toBe(false);
  });

  it("shows a new owner, and reads a job again that may now be one's own", async () => {
    feed.event(event("owner_changed", "a", { before: "bob", owner: "ada" }));
    feed.event(event("owner_changed", "c", { before: "bob", owner: "ada" }));
    await vi.advanceTimersByTimeAsync(BATCH_MILLISECONDS - 1);
    expect(rows().map((job) => job.owner)).toEqual([undefined, undefined]);
    await vi.advanceTimersByTimeAsync(1);
    expect(fetched.mock.calls).toEqual([["a"], ["c"]]);
    expect(rows().map((job) => job.id)).toEqual(["c", "b", "a"]);
  });

  it("reads everything except the schema again after a reset", () => {
    client.setQueryData(keys.session, null);
    client.setQueryData(keys.schema, null);
    client.setQueryData(keys.jobView("a"), {});
    feed.reset();
    expect(client.getQueryState(keys.session)?.isInvalidated).toBe(true);
    expect(client.getQueryState(keys.schema)?.isInvalidated).toBe(false);
    expect(client.getQueryState(keys.jobView("a"))?.isInvalidated).toBe(true);
  });
});
