// The operations that a row shows, and the actions that it offers.
import { describe, expect, it } from "vitest";
import type { CheckpointView, Job, Operation, StreamItem } from "@/shared/api/types";
import {
  exportCommand,
  exportsOf,
  failedTries,
  operationWords,
  shareDone,
  toldOperation,
  verbCommand,
  verbsOf,
  withEvent,
} from "./operations";

const operation = (part: Partial<Operation>): Operation => ({
  id: "c1",
  kind: "verify",
  state: "queued",
  job_id: "j",
  job_name: "tiny",
  checkpoint_id: "k",
  actor: "ada",
  reason: "",
  waiting: null,
  node: null,
  tries: 0,
  failing: null,
  progress: null,
  outcome: null,
  created_at: "2026-01-01T00:00:00Z",
  started_at: null,
  ended_at: null,
  ...part,
});

const row = (part: Partial<CheckpointView>) =>
  ({ deleting: false, not_deleted: null, pinned_at: null, ...part }) as CheckpointView;

const job = (factory: string | null = null) => ({ spec: { model: { factory } } }) as Job;

describe("actions on a checkpoint", () => {
  it("offers either pin or unpin", () => {
    expect(verbsOf(row({}), job())).toEqual(["verify", "export", "pin", "delete"]);
    expect(verbsOf(row({ pinned_at: "2026-01-01T00:00:00Z" }), job())).toContain("unpin");
  });

  it("offers only another deletion after a failed one", () => {
    expect(verbsOf(row({ deleting: true }), job())).toEqual(["delete"]);
  });

  it("offers no export of a damaged checkpoint or of a custom model", () => {
    const damaged = { verification: { ok: false } } as Partial<CheckpointView>;
    expect(verbsOf(row(damaged), job())).not.toContain("export");
    expect(verbsOf(row({}), job("gpt:build"))).not.toContain("export");
  });

  it("has the command of the same export", () => {
    const reference = "tiny@a1.step-4";
    expect(exportCommand(reference, {})).toBe("trainyard export tiny@a1.step-4 --wait");
    expect(exportCommand(reference, { dtype: "float16", name: "mine" })).toBe(
      "trainyard export tiny@a1.step-4 --dtype float16 --name mine --wait",
    );
  });

  it("has the equivalent command", () => {
    expect(verbCommand("pin", "tiny@a1.step-4")).toBe("trainyard checkpoints pin tiny@a1.step-4");
  });
});

describe("the operation of a row", () => {
  it("prefers an open operation, then the newest one if it failed", () => {
    const ended_at = "2026-01-01T00:01:00Z";
    const failed = operation({ id: "c2", state: "failed", ended_at });
    const open = operation({ id: "c3", state: "running" });
    expect(toldOperation([failed, open], "k")).toBe(open);
    expect(toldOperation([failed], "k")).toBe(failed);
    expect(toldOperation([operation({ state: "succeeded", ended_at }), failed], "k")).toBeNull();
    expect(toldOperation([open], "another")).toBeNull();
  });

  it("has words for each state", () => {
    expect(operationWords(operation({}))).toBe("verify queued");
    expect(operationWords(operation({ kind: "delete", state: "running" }))).toBe("deleting");
    expect(operationWords(operation({ state: "failed" }))).toBe("verify failed");
    const failing = {
      count: 3,
      since: "2026-01-01T00:00:00Z",
      reason: "permission denied",
      next_at: null,
    };
    expect(operationWords(operation({ kind: "delete", failing }))).toBe(
      "delete failed, will be retried",
    );
    expect(failedTries(failing)).toMatch(/^Failed 3 times since .*: permission denied$/);
  });

  it("has progress only while a node runs it", () => {
    const progress = { doing: "reads", done: 3, total: 12 };
    expect(shareDone(operation({ state: "running", progress }))).toBe(0.25);
    expect(shareDone(operation({ state: "queued", progress }))).toBeNull();
    expect(shareDone(operation({ state: "running" }))).toBeNull();
  });

  it("lists each exported folder once", () => {
    const written = (place: string) => ({ export: { place, path: "/", size: 1 } });
    const done = (place: string, part: Partial<Operation> = {}) =>
      operation({ kind: "export", outcome: written(place) as Operation["outcome"], ...part });
    const other = done("c:exports/z", { checkpoint_id: "another" });
    const found = exportsOf(
      [done("c:exports/a"), done("c:exports/b"), done("c:exports/a"), other, operation({})],
      { id: "k", auto_export: null },
    );
    expect(found.map((one) => one.place)).toEqual(["c:exports/a", "c:exports/b"]);
  });

  it("lists an automatic export also after its operation has left the list", () => {
    const result = { place: "c:j/a1/step-4/hugging_face" };
    const row = { id: "k", auto_export: { result } } as unknown as CheckpointView;
    const again = operation({ outcome: { export: result } as Operation["outcome"] });
    expect(exportsOf([], row)).toEqual([result]);
    expect(exportsOf([again], row)).toEqual([result]);
  });

  it("leaves a failed automatic export to its own badge", () => {
    const ended_at = "2026-01-01T00:01:00Z";
    const failed = operation({ kind: "auto_export", state: "failed", ended_at });
    expect(operationWords(failed)).toBe("automatic export failed");
    expect(toldOperation([failed], "k")).toBeNull();
  });

  it("changes by its own events only", () => {
    const progress = { doing: "reads", done: 3, total: 12 };
    const event = {
      kind: "operation_progress",
      data: { operation_id: "c1", progress },
    } as unknown as StreamItem;
    const [own, other] = withEvent([operation({}), operation({ id: "c9" })], event);
    expect(own).toMatchObject({ state: "running", progress });
    expect(other?.progress).toBeNull();
    const waits = {
      kind: "operation_waiting",
      data: { operation_id: "c9", waiting: "waits for gpu-1" },
    } as unknown as StreamItem;
    const found = withEvent([operation({}), operation({ id: "c9" })], waits);
    expect(found.map(({ waiting }) => waiting)).toEqual([null, "waits for gpu-1"]);
  });
});
