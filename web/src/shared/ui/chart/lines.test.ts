import { describe, expect, test } from "vitest";
import type { MetricLine } from "@/shared/api/types";
import {
  branchReadingAt,
  bucketsBetween,
  columnsOf,
  courseOf,
  extentOf,
  neighbourStep,
  nonFiniteTotal,
  readingAt,
} from "./lines";

/** A line of buckets of ten steps: 1-10, 11-20, ... whose values are given. */
function line(branch: string, start: number, values: (number | null)[]): MetricLine {
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

const course = line("lineage", 1, [5, 4, null, 3]);
const branch = line("attempt-2", 21, [50, 40]);

describe("lines of a chart", () => {
  test("the lineage is drawn whole, wherever it stands", () => {
    expect(courseOf([branch, course])).toBe(course);
    expect(courseOf([branch])).toBe(branch);
    expect(courseOf([])).toBeUndefined();
  });

  test("a bucket without a finite value is a gap in every column", () => {
    const [steps, high, low, last] = columnsOf(course);
    expect(steps).toEqual([10, 20, 30, 40]);
    expect(high).toEqual([6, 5, null, 4]);
    expect(low).toEqual([4, 3, null, 2]);
    expect(last).toEqual([5, 4, null, 3]);
    expect(columnsOf(undefined).every((column) => column.length === 0)).toBe(true);
  });

  test("the steps of branches count in the range of the axis", () => {
    expect(extentOf([course, branch])).toEqual([10, 40]);
    expect(extentOf([])).toBeNull();
  });

  test("only buckets that overlap the shown steps are visible", () => {
    expect(bucketsBetween(course, [0, 100])).toEqual({ min: course.min, max: course.max });
    expect(bucketsBetween(course, [12, 15])).toEqual({ min: [3], max: [5] });
    expect(bucketsBetween(course, [10, 11])).toEqual({ min: [4, 3], max: [6, 5] });
    expect(bucketsBetween(course, [22, 28])).toEqual({ min: [null], max: [null] });
    expect(bucketsBetween(course, [200, 300])).toEqual({ min: [], max: [] });
  });

  test("a reading is that of the bucket which holds the step", () => {
    expect(readingAt(course, 11)).toMatchObject({ firstStep: 11, lastStep: 20, last: 4 });
    expect(readingAt(course, 20)).toMatchObject({ firstStep: 11, lastStep: 20 });
    expect(readingAt(course, 25)).toMatchObject({ last: null, nonFinite: 10, count: 10 });
    expect(readingAt(course, 9999)).toMatchObject({ lastStep: 40 });
    expect(readingAt(course, -5)).toMatchObject({ firstStep: 1 });
    expect(readingAt(line("lineage", 1, []), 3)).toBeNull();
  });

  test("a branch is silent outside its own steps", () => {
    expect(branchReadingAt(branch, 20)).toBeNull();
    expect(branchReadingAt(branch, 21)).toMatchObject({ last: 50 });
    expect(branchReadingAt(branch, 41)).toBeNull();
  });

  test("arrow keys walk from bucket to bucket and stay within", () => {
    expect(neighbourStep(course, null, -1)).toBe(40);
    expect(neighbourStep(course, 40, -1)).toBe(30);
    expect(neighbourStep(course, 10, -1)).toBe(10);
    expect(neighbourStep(course, 40, 5)).toBe(40);
    expect(neighbourStep(line("lineage", 1, []), 3, 1)).toBeNull();
  });

  test("points that are not finite are counted over the whole line", () => {
    expect(nonFiniteTotal(course)).toBe(10);
    expect(nonFiniteTotal(undefined)).toBe(0);
  });
});
