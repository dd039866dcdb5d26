import { describe, expect, test } from "vitest";
import type { MetricCurve, Metrics, StreamItem } from "@/shared/api/types";
import {
  bucketsWithin,
  type Curve,
  extentOfCurves,
  neighbourPlace,
  nonFiniteTotal,
  readingAt,
} from "@/shared/ui/chart/curve";
import { appendPoint, drawnCurves, pointOf } from "./metrics";

/** A curve with the given values, in buckets of ten steps: 1-10, 11-20, ... */
function curveOf(branch: string, start: number, values: (number | null)[]): MetricCurve {
  return {
    name: "train/loss",
    branch,
    steps: values.map((_, index) => start + index * 10 + 9),
    first_steps: values.map((_, index) => start + index * 10),
    min: values.map((value) => value && value - 1),
    max: values.map((value) => value && value + 1),
    last: values,
    count: values.map(() => 10),
    non_finite: values.map((value) => (value === null ? 10 : 0)),
  };
}

const [lineage, branch] = drawnCurves([
  curveOf("lineage", 1, [5, 4, null, 3]),
  curveOf("attempt-2", 21, [50, 40]),
]) as [Curve, Curve];
const [empty] = drawnCurves([curveOf("lineage", 1, [])]) as [Curve];

describe("curves of a job's chart", () => {
  test("the lineage is drawn whole, whatever its place", () => {
    const [first, second] = [curveOf("attempt-2", 21, [50]), curveOf("lineage", 1, [5])];
    const drawn = (all: MetricCurve[]) => drawnCurves(all).map(({ isBranch }) => !isBranch);
    expect(drawn([first, second])).toEqual([false, true]);
    expect(drawn([first])).toEqual([true]);
    expect(drawn([])).toEqual([]);
  });

  test("a bucket without a finite value is a gap in every column", () => {
    expect(lineage).toMatchObject({
      x: [10, 20, 30, 40],
      max: [6, 5, null, 4],
      min: [4, 3, null, 2],
      last: [5, 4, null, 3],
    });
    expect(empty).toMatchObject({ x: [], max: [], min: [], last: [] });
  });

  test("the steps of branches count in the range of the axis", () => {
    expect(extentOfCurves([lineage, branch])).toEqual([10, 40]);
    expect(extentOfCurves([])).toBeNull();
  });

  test("only buckets that overlap the visible steps are visible", () => {
    expect(bucketsWithin(lineage, [0, 100])).toEqual({ min: lineage.min, max: lineage.max });
    expect(bucketsWithin(lineage, [12, 15])).toEqual({ min: [3], max: [5] });
    expect(bucketsWithin(lineage, [10, 11])).toEqual({ min: [4, 3], max: [6, 5] });
    expect(bucketsWithin(lineage, [22, 28])).toEqual({ min: [null], max: [null] });
    expect(bucketsWithin(lineage, [200, 300])).toEqual({ min: [], max: [] });
  });

  test("a reading is that of the bucket that holds the step", () => {
    expect(readingAt(lineage, 11)).toMatchObject({ begin: 11, x: 20, last: 4 });
    expect(readingAt(lineage, 20)).toMatchObject({ begin: 11, x: 20 });
    expect(readingAt(lineage, 25)).toMatchObject({ last: null, nonFinite: 10, count: 10 });
    expect(readingAt(lineage, 9999)).toMatchObject({ x: 40 });
    expect(readingAt(lineage, -5)).toMatchObject({ begin: 1 });
    expect(readingAt(empty, 3)).toBeNull();
  });

  test("a branch has no reading outside its own steps", () => {
    expect(readingAt(branch, 20)).toBeNull();
    expect(readingAt(branch, 21)).toMatchObject({ last: 50 });
    expect(readingAt(branch, 41)).toBeNull();
  });

  test("arrow keys walk from bucket to bucket and stay within", () => {
    expect(neighbourPlace([lineage], null, -1)).toBe(40);
    expect(neighbourPlace([lineage], 40, -1)).toBe(30);
    expect(neighbourPlace([lineage], 10, -1)).toBe(10);
    expect(neighbourPlace([lineage], 40, 5)).toBe(40);
    expect(neighbourPlace([empty], 3, 1)).toBeNull();
  });

  test("non-finite points are counted over the whole curve", () => {
    expect(nonFiniteTotal(lineage)).toBe(10);
    expect(nonFiniteTotal(empty)).toBe(0);
  });
});

const event = (kind: string, data: Record<string, unknown>) =>
  ({ id: 1, at: "2026-01-01T00:00:00Z", kind, job_id: "j", data }) as unknown as StreamItem;

const shortCurve = (branch: string) => ({
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

const metrics: Metrics = {
  job_id: "j",
  names: ["train/loss"],
  last_step: 2,
  curves: [shortCurve("lineage"), shortCurve("attempt-1")],
};

describe("live points", () => {
  test("NaN and infinity come as strings", () => {
    const data = { step: 3, values: { "train/loss": "NaN", "train/grad_norm": "Infinity", x: 1 } };
    expect(pointOf(event("metrics", data))).toEqual({
      step: 3,
      values: { "train/loss": Number.NaN, "train/grad_norm": Number.POSITIVE_INFINITY, x: 1 },
    });
  });

  test("other events contain no point", () => {
    expect(pointOf(event("log", { step: 3, values: {} }))).toBeNull();
  });

  test("a point extends the lineage and leaves branches alone", () => {
    const after = appendPoint(metrics, { step: 3, values: { "train/loss": 1.5 } }, ["train/loss"]);
    expect(after.curves[0]).toMatchObject({
      steps: [1, 2, 3],
      last: [3, 2, 1.5],
      count: [1, 1, 1],
    });
    expect(after.curves[1]).toBe(metrics.curves[1]);
    expect(after.last_step).toBe(3);
    expect(metrics.curves[0]?.steps).toEqual([1, 2]);
  });

  test("NaN becomes a counted gap", () => {
    const after = appendPoint(metrics, { step: 3, values: { "train/loss": Number.NaN } }, []);
    expect(after.curves[0]).toMatchObject({ last: [3, 2, null], non_finite: [0, 0, 1] });
  });

  test("a known or older point changes nothing", () => {
    const after = appendPoint(metrics, { step: 2, values: { "train/loss": 9 } }, ["train/loss"]);
    expect(after.curves).toEqual(metrics.curves);
  });

  test("a requested series begins with its first point; others are only named", () => {
    const values = { "train/lr": 0.1, "perf/mfu": 0.4 };
    const after = appendPoint(metrics, { step: 3, values }, ["train/lr"]);
    expect(after.names).toEqual(["perf/mfu", "train/loss", "train/lr"]);
    expect(after.curves.map(({ name }) => name)).toEqual(["train/loss", "train/loss", "train/lr"]);
    expect(after.curves[2]).toMatchObject({ branch: "lineage", steps: [3], last: [0.1] });
  });
});
