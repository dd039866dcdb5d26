import { describe, expect, it } from "vitest";
import type { ComparedJob } from "@/shared/api/types";
import {
  bucketsWithin,
  type Curve,
  extentOfCurves,
  neighbourPlace,
  nonFiniteTotal,
  readingAt,
} from "@/shared/ui/chart/curve";
import { runsOf } from "@/shared/ui/chart/plot/drawExtremes";
import { smoothed } from "@/shared/ui/chart/values/smoothed";
import { curvesOf, newestValue } from "./curves";

const job = (id: string, more: object = {}): ComparedJob =>
  ({
    id,
    name: id,
    start_time: 100,
    curves: [
      {
        name: "train/loss",
        branch: "lineage",
        first_steps: [1, 11, 21],
        steps: [10, 20, 30],
        last: [4, null, 2],
        min: [3, null, 1],
        max: [9, null, 5],
        count: [10, 10, 10],
        non_finite: [0, 10, 1],
        times: [110, 120, 115],
        tokens: [1000, 2000, null],
        ...more,
      },
    ],
  }) as unknown as ComparedJob;

const curve = (axis: "step" | "tokens" | "seconds", more: object = {}): Curve =>
  curvesOf([{ slot: 2, job: job("a", more) }], "train/loss", { axis, smoothing: 0 })[0] as Curve;

describe("curves", () => {
  it("run over steps, tokens or the time since the first point", () => {
    expect(curve("step").x).toEqual([10, 20, 30]);
    expect(curve("tokens")).toMatchObject({ x: [1000, 2000], last: [4, null], steps: [10, 20] });
    // The second machine's clock is behind.
    expect(curve("seconds").x).toEqual([10, 20, 20]);
  });

  it("are omitted for a job without a place on the axis or without the series", () => {
    const jobs = [{ slot: 0, job: job("a", { tokens: [null, null, null] }) }];
    expect(curvesOf(jobs, "train/loss", { axis: "tokens", smoothing: 0 })).toEqual([]);
    expect(curvesOf(jobs, "train/lr", { axis: "step", smoothing: 0 })).toEqual([]);
  });

  it("have their newest value, NaN included, and the count of non-finite points", () => {
    expect(newestValue(curve("step", { last: [1, 2, 3] }))).toBe(3);
    expect(newestValue(curve("step", { last: [1, 0, null] }))).toBeNull();
    expect(newestValue(curve("step", { last: [null, null, null] }))).toBeNull();
    expect(nonFiniteTotal(curve("step"))).toBe(11);
  });

  it("have the bucket nearest to a place, and nothing outside their ends", () => {
    expect(readingAt(curve("step"), 14)).toMatchObject({ step: 10, last: 4, count: 10 });
    expect(readingAt(curve("step"), 16)).toMatchObject({ step: 20, last: null });
    expect(readingAt(curve("step"), 9)).toBeNull();
    expect(readingAt(curve("step"), 31)).toBeNull();
  });

  it("determine the range of the y axis", () => {
    const curves = [curve("step"), curve("step", { steps: [5, 15, 40] })];
    expect(extentOfCurves(curves)).toEqual([5, 40]);
    expect(extentOfCurves([])).toBeNull();
  });

  it("have the buckets that overlap a stretch", () => {
    expect(bucketsWithin(curve("step"), [5, 40])).toEqual({ min: [3, null, 1], max: [9, null, 5] });
    expect(bucketsWithin(curve("step"), [0, 10])).toEqual({ min: [3, null], max: [9, null] });
    expect(bucketsWithin(curve("step"), [22, 25])).toEqual({ min: [1], max: [5] });
    expect(bucketsWithin(curve("step"), [31, 40])).toEqual({ min: [], max: [] });
  });

  it("let arrow keys move bucket by bucket, over all jobs", () => {
    const curves = [curve("step"), curve("step", { steps: [5, 15, 40] })];
    expect(neighbourPlace(curves, null, -1)).toBe(40);
    expect(neighbourPlace(curves, 10, 1)).toBe(15);
    expect(neighbourPlace(curves, 5, -1)).toBe(5);
    expect(neighbourPlace([], 5, 1)).toBeNull();
  });
});

describe("bands", () => {
  it("have the gaps of their curves", () => {
    expect(runsOf([null, 1, 2, null, 3])).toEqual([
      [1, 3],
      [4, 5],
    ]);
    expect(runsOf([null])).toEqual([]);
  });
});

describe("smoothing", () => {
  it("weighs the past, without a bias to zero at the start", () => {
    expect(smoothed([8, 8, 8], 0.9)).toEqual([8, 8, 8].map((value) => expect.closeTo(value, 12)));
    const [first, second] = smoothed([4, 2], 0.5);
    expect(first).toBe(4);
    expect(second).toBeCloseTo((4 * 0.25 + 2 * 0.5) / 0.75, 12);
  });

  it("keeps gaps, and continues after them", () => {
    const [, gap, last] = smoothed([4, null, 2], 0.5);
    expect(gap).toBeNull();
    expect(last).toBeCloseTo(2.6667, 3);
  });

  it("changes nothing at zero", () => {
    const values = [1, null, 3];
    expect(smoothed(values, 0)).toBe(values);
  });
});
