import { describe, expect, it } from "vitest";
import type { Artifact } from "@/shared/api/types";
import { apart, barsOf, sequencesOf } from "./sequences";

const artifact = (name: string, step: number) => ({ id: `${name}${step}`, name, step }) as Artifact;
const plain = { nan: 0, positive_infinity: 0, negative_infinity: 0 };

it("groups artifacts by name, each in the order of logging", () => {
  const found = sequencesOf([
    artifact("b/10", 3),
    artifact("a", 2),
    artifact("b/9", 1),
    artifact("a", 1),
  ]);
  expect(found.map(({ name }) => name)).toEqual(["a", "b/9", "b/10"]);
  expect(found[0]?.items.map(({ step }) => step)).toEqual([1, 2]);
});

describe("bars of a histogram", () => {
  it("fill the range, and the highest fills the height", () => {
    const bars = barsOf({ ...plain, edges: [0, 1, 2], counts: [1, 4] });
    expect(bars).toEqual([
      { x: 0, width: 0.5, height: 0.25 },
      { x: 0.5, width: 0.5, height: 1 },
    ]);
  });

  it("compare by density where bins are unequal", () => {
    const bars = barsOf({ ...plain, edges: [0, 1, 4], counts: [2, 6] });
    expect(bars.map(({ height }) => height)).toEqual([1, 1]);
  });

  it("are absent without a finite value", () => {
    expect(barsOf({ ...plain, edges: [], counts: [] })).toEqual([]);
  });
});

it("counts non-finite values separately", () => {
  expect(apart({ ...plain, edges: [], counts: [] })).toBe("");
  const found = apart({
    edges: [],
    counts: [],
    nan: 1200,
    positive_infinity: 0,
    negative_infinity: 1,
  });
  expect(found).toBe("1,200 NaN, 1 -Inf");
});
