import { describe, expect, it } from "vitest";
import type { JobFilter } from "@/shared/api/queries";
import type { JobSummary, StreamItem } from "@/shared/api/types";
import { type JobPage, matches, placeJob, reduceJob, reducePages } from "./jobs";

const ALL: JobFilter = { states: [], tags: [], project: "", search: "", owner: "" };

function job(id: string, changes: Partial<JobSummary> = {}): JobSummary {
  return {
    id,
    name: `job-${id}`,
    tags: [],
    project: "default",
    owner: null,
    state: "running",
    reason: null,
    attempt: 1,
    world_size: 2,
    min_world_size: null,
    max_world_size: null,
    layout: "FSDP 2",
    priority: 0,
    progress: {
      phase: "training",
      step: 1,
      steps: 10,
      steps_reported: false,
      answers: [],
      loss: 2,
      tokens_per_second: 5,
      seconds_left: 9,
      heartbeat_at: null,
    },
    created_at: "2026-01-01T00:00:00Z",
    updated_at: "2026-01-01T00:00:00Z",
    started_at: null,
    ended_at: null,
    imported_from: null,
    ...changes,
  };
}

function event(kind: string, job_id: string, data: Record<string, unknown> = {}): StreamItem {
  const at = "2026-01-01T01:00:00Z";
  const head = { id: 1, at, job_id, attempt: 2, node: null, actor: "trainer", message: "" };
  return { ...head, kind, data } as unknown as StreamItem;
}

const ids = (pages: readonly JobPage[]) => pages.map((page) => page.items.map((row) => row.id));

describe("a row after events", () => {
  it("takes its progress from a metrics event", () => {
    const progress = { ...job("a").progress, step: 7, loss: "NaN" as unknown as number };
    expect(reduceJob(job("a"), [event("metrics", "a", { progress })]).progress).toEqual(progress);
  });

  it("follows a launch to its end", () => {
    const queued = job("a", { state: "queued", reason: "needs 2 slots", attempt: 0 });
    const placed = reduceJob(queued, [event("placed", "a", { layout: "FSDP 4" })]);
    expect(placed).toMatchObject({
      state: "starting",
      reason: null,
      attempt: 2,
      layout: "FSDP 4",
      started_at: "2026-01-01T01:00:00Z",
    });
    const ended = reduceJob(placed, [
      event("running", "a"),
      event("job_ended", "a", { state: "failed", reason: "hang: no heartbeat" }),
    ]);
    expect(ended).toMatchObject({
      state: "failed",
      reason: "hang: no heartbeat",
      ended_at: "2026-01-01T01:00:00Z",
      progress: { phase: null, seconds_left: null, step: 1 },
    });
  });

  it("stays the same object without events of its own", () => {
    const row = job("a");
    expect(reduceJob(row, [event("log", "a"), event("claimed", "a")])).toBe(row);
  });
});

describe("the filter", () => {
  it.each<[Partial<JobFilter>, boolean]>([
    [{}, true],
    [{ states: ["running", "failed"] }, true],
    [{ states: ["failed"] }, false],
    [{ tags: ["x"] }, true],
    [{ tags: ["x", "z"] }, false],
    [{ search: "OB-A" }, true],
    [{ search: "b-a" }, true],
    [{ search: "nope" }, false],
    [{ search: "a  JOB " }, true],
    [{ search: "job nope" }, false],
    [{ owner: "ada" }, true],
    [{ owner: "bob" }, false],
    [{ owner: "*" }, true],
  ])("%j shows the job: %s", (filter, shown) => {
    expect(matches(job("a", { tags: ["x", "y"], owner: "ada" }), { ...ALL, ...filter })).toBe(
      shown,
    );
  });
});

describe("pages", () => {
  const pages: JobPage[] = [
    { items: [job("9"), job("7")], next_page_token: "t" },
    { items: [job("5"), job("3")], next_page_token: "u" },
  ];

  it("keep unchanged rows, and drop rows that no longer match", () => {
    const events = new Map([["5", [event("job_ended", "5", { state: "succeeded" })]]]);
    const changed = reducePages(pages, events, { ...ALL, states: ["running"] });
    expect(ids(changed)).toEqual([["9", "7"], ["3"]]);
    expect(changed[0]).toBe(pages[0]);
  });

  it("insert a new job at its place, by id", () => {
    expect(ids(placeJob(pages, job("99"), ALL))[0]).toEqual(["99", "9", "7"]);
    expect(ids(placeJob(pages, job("6"), ALL))[1]).toEqual(["6", "5", "3"]);
  });

  it("put an ended job below the others, once", () => {
    const whole = [{ items: [job("9"), job("7"), job("8", { ended_at: "2026-01-01T00:30:00Z" })] }];
    const events = new Map([["9", [event("job_ended", "9", { state: "failed" })]]]);
    expect(ids(reducePages(whole, events, ALL))).toEqual([["7", "9", "8"]]);
  });

  it("leave a job to a page that was not read yet", () => {
    expect(ids(placeJob(pages, job("1"), ALL))).toEqual(ids(pages));
    const whole = [{ items: [job("9")], next_page_token: null }];
    expect(ids(placeJob(whole, job("1"), ALL))).toEqual([["9", "1"]]);
  });

  it("replace a job in its place, and remove it when it does not match", () => {
    expect(placeJob(pages, job("7", { name: "new" }), ALL)[0]?.items[1]?.name).toBe("new");
    expect(placeJob(pages, job("3", { name: "new" }), ALL)[1]?.items[1]?.name).toBe("new");
    expect(ids(placeJob(pages, job("7"), { ...ALL, states: ["failed"] }))[0]).toEqual(["9"]);
  });
});
