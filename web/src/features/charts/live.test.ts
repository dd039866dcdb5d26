import { describe, expect, test } from "vitest";
import type { Metrics, StreamItem } from "@/shared/api/types";
import { appendPoint, pointOf } from "./live";

const event = (kind: string, data: Record<string, unknown>) =>
  ({ id: 1, at: "2026-01-01T00:00:00Z", kind, job_id: "j", data }) as unknown as StreamItem;

const line = (branch: string) => ({
  name: "train/loss",
  branch,
  steps: [1, 2],
  first_steps: [1, 2],
  min: [3, 2],
  max: [3, 2],
  last: [3, 2],
  count: [1, 1],
  non_finite: [0, 0],
});

const view: Metrics = {
  job_id: "j",
  names: ["train/loss"],
  last_step: 2,
  lines: [line("lineage"), line("attempt-1")],
};

describe("live points", () => {
  test("NaN and infinity come as strings", () => {
    const data = { step: 3, values: { "train/loss": "NaN", "train/grad_norm": "Infinity", x: 1 } };
    expect(pointOf(event("metrics", data))).toEqual({
      step: 3,
      values: { "train/loss": Number.NaN, "train/grad_norm": Number.POSITIVE_INFINITY, x: 1 },
    });
  });

  test("other events bring no point", () => {
    expect(pointOf(event("log", { step: 3, values: {} }))).toBeNull();
  });

  test("a point extends the lineage and leaves branches alone", () => {
    const after = appendPoint(view, { step: 3, values: { "train/loss": 1.5 } }, ["train/loss"]);
    expect(after.lines[0]).toMatchObject({ steps: [1, 2, 3], last: [3, 2, 1.5], count: [1, 1, 1] });
    expect(after.lines[1]).toBe(view.lines[1]);
    expect(after.last_step).toBe(3);
    expect(view.lines[0]?.steps).toEqual([1, 2]);
  });

  test("NaN becomes a gap that is counted", () => {
    const after = appendPoint(view, { step: 3, values: { "train/loss": Number.NaN } }, []);
    expect(after.lines[0]).toMatchObject({ last: [3, 2, null], non_finite: [0, 0, 1] });
  });

  test("a point that is known already, or older, changes nothing", () => {
    const after = appendPoint(view, { step: 2, values: { "train/loss": 9 } }, ["train/loss"]);
    expect(after.lines).toEqual(view.lines);
  });

  test("a series that is wanted begins with its first point; others are only named", () => {
    const values = { "train/lr": 0.1, "perf/mfu": 0.4 };
    const after = appendPoint(view, { step: 3, values }, ["train/lr"]);
    expect(after.names).toEqual(["perf/mfu", "train/loss", "train/lr"]);
    expect(after.lines.map(({ name }) => name)).toEqual(["train/loss", "train/loss", "train/lr"]);
    expect(after.lines[2]).toMatchObject({ branch: "lineage", steps: [3], last: [0.1] });
  });
});
