import { describe, expect, test } from "vitest";
import { changesBetween, factsOf, packagesOf } from "./compare";

const before = {
  git_commit: "abc",
  git_diff: "",
  torch: "2.13.0",
  nccl: null,
  gpus: ["H200", "H200"],
  packages: { numpy: "2.3", torch: "2.13.0" },
};

describe("provenance", () => {
  test("unknown facts are omitted, and equal GPUs are counted", () => {
    expect(factsOf(before)).toEqual([
      { name: "Commit", value: "abc" },
      { name: "torch", value: "2.13.0" },
      { name: "GPUs", value: "2 × H200" },
    ]);
  });

  test("records of another shape are read as far as possible", () => {
    expect(factsOf({})).toEqual([]);
    expect(packagesOf({ packages: null })).toEqual([]);
  });

  test("two attempts are compared: facts, the state of the code, packages", () => {
    const after = {
      ...before,
      git_diff: "a\nb",
      packages: { numpy: "2.4", torch: "2.13.0", x: "1" },
    };
    expect(changesBetween(before, after)).toEqual([
      { name: "Uncommitted changes", before: "none", after: "2 lines" },
      { name: "package numpy", before: "2.3", after: "2.4" },
      { name: "package x", before: "–", after: "1" },
    ]);
    expect(changesBetween(before, before)).toEqual([]);
  });
});
