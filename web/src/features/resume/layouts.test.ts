import { describe, expect, test } from "vitest";
import type { ResumeOptions } from "@/shared/api/types";
import { firstRow, pipelineWords, proposedMicroBatchSize, rowsOf } from "./layouts";

/** The server alone decides which axes there are: `ep` stands for one that was added. */
const axes = (dp_replicate: number, dp_shard: number) => ({ dp_replicate, dp_shard, ep: 1 });

const layout = (dp_replicate: number, dp_shard: number, fits: boolean | null = true) => ({
  layout: axes(dp_replicate, dp_shard),
  name: `${dp_replicate}x${dp_shard}`,
  batch: { micro_batch_size: 4 },
  fits,
});

const size = (world_size: number, layouts: object[], free_now = true, more = 0) => ({
  world_size,
  free_now,
  layouts,
  more,
  reason: layouts.length === 0 ? "no micro-batch size is legal" : null,
});

const options = {
  checkpoint_id: "j.a1.step-40",
  step: 40,
  options: [
    size(1, [layout(1, 1, false)]),
    size(2, [layout(1, 2, false), layout(2, 1, false)]),
    size(3, []),
    size(4, [layout(1, 4), layout(2, 2)], false, 3),
  ],
} as unknown as ResumeOptions;

const rows = rowsOf(options, "1x2");
const row = (key: string) => {
  const found = rows.find((one) => one.key.startsWith(key));
  if (!found) throw new Error(key);
  return found;
};

describe("rows", () => {
  test("every layout of every size, and the reason where there is none", () => {
    expect(rows.map(({ worldSize, isFirst, isBefore }) => [worldSize, isFirst, isBefore])).toEqual([
      [1, true, false],
      [2, true, true],
      [2, false, false],
      [3, true, false],
      [4, true, false],
      [4, false, false],
    ]);
    expect(row("3")).toMatchObject({ option: null, reason: "no micro-batch size is legal" });
  });

  test("what the list leaves out is counted after the last layout of its size", () => {
    expect(rows.map(({ more }) => more)).toEqual([0, 0, 0, 0, 0, 3]);
  });

  test("a pipeline shows its schedule and the share of its bubble", () => {
    const words = (bubble_share: number) =>
      pipelineWords({
        schedule: "1F1B",
        layers: [2, 2],
        microbatches: 4,
        runs: 1,
        empty: 0,
        bubble_share,
      });
    expect([words(0.2), words(1 / 9)]).toEqual(["1F1B, 20 % bubble", "1F1B, 11.1 % bubble"]);
  });

  test("the first choice is the layout before; after a shortage of memory, more slots that fit", () => {
    expect(firstRow(rows, null)?.key).toBe("2/1x2");
    expect(firstRow(rows, "memory")?.worldSize).toBe(4);
    expect(firstRow(rows, "free")?.worldSize).toBe(2);
    expect(firstRow(rowsOf(options, "1x4"), "free")?.worldSize).toBe(2);
    expect(firstRow([], null)).toBeUndefined();
  });

  test("a resize never begins with what runs", () => {
    expect(firstRow(rows, null, true)?.worldSize).not.toBe(2);
    const alone = rowsOf({ ...options, options: options.options.slice(1, 2) }, "1x2");
    expect(firstRow(alone, null, true)).toBeUndefined();
  });
});

describe("after a shortage of memory", () => {
  test("more slots that fit are enough; otherwise half of the sequences at once", () => {
    expect(proposedMicroBatchSize(row("4/1x4"), "memory")).toBeNull();
    expect(proposedMicroBatchSize(row("2/1x2"), "memory")).toBe(2);
    expect(proposedMicroBatchSize(row("2/1x2"), null)).toBeNull();
    const small = rowsOf({ ...options, options: options.options.slice(0, 2) }, "1x2");
    expect(firstRow(small, "memory")).toMatchObject({ worldSize: 2, isBefore: true });
  });
});
