import { describe, expect, test } from "vitest";
import type { Goodput } from "@/shared/api/types";
import { partsOf, shareWords } from "./ledger";

describe("the goodput ledger", () => {
  test("categories with time, in the order of the server, with their shares", () => {
    const goodput = {
      wall_milliseconds: 4000,
      categories: [
        { category: "productive", words: "productive steps", milliseconds: 3000 },
        { category: "data_wait", words: "waiting for data", milliseconds: 0 },
        { category: "lost", words: "steps lost", milliseconds: 1000 },
      ],
    } as Goodput;
    expect(partsOf(goodput).map(({ words, seconds, share }) => [words, seconds, share])).toEqual([
      ["Productive steps", 3, 0.75],
      ["Steps lost", 1, 0.25],
    ]);
  });

  test("any two categories of a job differ in colour or shade", () => {
    const all = [
      ...["productive", "data_wait", "compilation", "save_stall", "validation", "startup"],
      ...["ending", "queued", "requeued", "backoff", "paused", "lost", "idle_after_failure"],
      ...["unreachable", "other"],
    ];
    const categories = all.map((category) => ({ category, words: "", milliseconds: 1 }));
    const found = partsOf({ wall_milliseconds: 15, categories } as Goodput);
    expect(new Set(found.map(({ colour }) => colour)).size).toBe(all.length);
  });

  test("a small part is not rounded to 0 %, nor a large one to 100 %", () => {
    expect([0, 0.0004, 0.0005, 0.824, 0.9996, 1].map(shareWords)).toEqual([
      "0 %",
      "<0.1 %",
      "0.1 %",
      "82.4 %",
      ">99.9 %",
      "100 %",
    ]);
  });
});
