import { describe, expect, test } from "vitest";
import type { Attempt } from "@/shared/api/types";
import { DRAWN, labelled, markAt, marksOf, panelsOf } from "./panels";

const attempt = (number: number, start_step: number, on_lineage = true): Attempt =>
  ({ number, start_step, on_lineage, layout_name: `FSDP ${number}` }) as Attempt;

describe("panels", () => {
  test("the most used series come first, and none is omitted", () => {
    const names = ["perf/data_seconds", "train/loss", "train/lr", "own/metric"];
    expect(panelsOf(names, false)).toEqual({
      first: ["train/loss", "train/lr"],
      more: ["perf/data_seconds", "own/metric"],
    });
  });

  test("series of a user's script are drawn immediately, up to the limit", () => {
    const own = Array.from({ length: DRAWN }, (_, index) => `own/${index}`);
    const { first, more } = panelsOf([...own, "train/loss"], true);
    expect(first).toEqual(["train/loss", ...own.slice(0, DRAWN - 1)]);
    expect(more).toEqual(own.slice(DRAWN - 1));
  });
});

describe("attempts in a chart", () => {
  test("only those of the lineage are marked, at their first step", () => {
    const marks = marksOf([attempt(4, 80), attempt(3, 60, false), attempt(2, 40), attempt(1, 0)]);
    expect(marks.map(({ attempt: number, step }) => [number, step])).toEqual([
      [1, 0],
      [2, 40],
      [4, 80],
    ]);
  });

  test("the newest of two with the same first step is marked", () => {
    expect(marksOf([attempt(3, 40), attempt(2, 40), attempt(1, 0)]).map((m) => m.attempt)).toEqual([
      1, 3,
    ]);
  });

  test("a layout is named where it changes", () => {
    const layouts = ["FSDP 4", "FSDP 4", "FSDP 2", "FSDP 4"];
    const marks = layouts.map((label, step) => ({ step, attempt: step + 1, label }));
    expect(labelled(marks).map(({ label }) => label)).toEqual(["FSDP 4", "", "FSDP 2", "FSDP 4"]);
  });

  test("a single layout is not named: the head of the page shows it", () => {
    const marks = [0, 1].map((step) => ({ step, attempt: step + 1, label: "2 slots" }));
    expect(labelled(marks).map(({ label }) => label)).toEqual(["", ""]);
  });

  test("a step belongs to the attempt that trained it", () => {
    const marks = marksOf([attempt(2, 40), attempt(1, 0)]);
    expect(markAt(marks, 40)?.attempt).toBe(1);
    expect(markAt(marks, 41)?.attempt).toBe(2);
    expect(markAt(marks, 0)).toBeUndefined();
  });
});
