import { describe, expect, test } from "vitest";
import type { ResumeOptions } from "@/shared/api/types";
import {
  firstRow,
  groupsOf,
  idleShare,
  pipelineWords,
  proposedMicroBatchSize,
  rowsOf,
} from "./layouts";

/** Only the server defines the axes: `ep` represents a new one. */
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
  test("every layout of every size, or the reason why none is legal", () => {
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

  test("omitted layouts are counted after the last layout of their size", () => {
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

  test("the first choice is the previous layout; after a shortage of memory, more slots that fit", () => {
    expect(firstRow(rows, null)?.key).toBe("2/1x2");
    expect(firstRow(rows, "memory")?.worldSize).toBe(4);
    expect(firstRow(rows, "free")?.worldSize).toBe(2);
    expect(firstRow(rowsOf(options, "1x4"), "free")?.worldSize).toBe(2);
    expect(firstRow([], null)).toBeUndefined();
  });

  test("a resize proposes the fastest other free layout, or none", () => {
    const fast = (found: object, tokens: number) => ({
      ...found,
      speed: { tokens_per_second: tokens },
    });
    const sizes = [
      size(1, [fast(layout(1, 1), 9_000)]),
      size(2, [fast(layout(1, 2), 16_200), fast(layout(2, 1), 17_000)]),
      size(3, [fast(layout(1, 3), 11_600)]),
      size(4, [fast(layout(1, 4), 40_000)], false),
      size(5, [fast(layout(1, 5, false), 50_000)]),
    ];
    const first = (listed: object[]) =>
      firstRow(rowsOf({ ...options, options: listed } as never, "1x2"), null, true)?.key;
    expect(first(sizes)).toBe("2/2x1");
    expect(first(sizes.filter((_, index) => index !== 1))).toBe("3/1x3");
    expect(first([sizes[3] as object])).toBeUndefined();
  });

  test("rows are grouped by slots: the usual ones are listed, the others on demand", () => {
    const [, two, , four] = groupsOf(rows, row("4/2x2"));
    expect(two?.listed.map(({ key }) => key)).toEqual(["2/1x2"]);
    expect(two?.others.map(({ key }) => key)).toEqual(["2/2x1"]);
    expect(four?.listed.map(({ key }) => key)).toEqual(["4/1x4", "4/2x2"]);
  });

  test("the bubble of a pipeline counts as idle", () => {
    const found = { batch: { idle_share: 0.5 }, pipeline: { bubble_share: 0.2 } };
    expect(idleShare(found as never)).toBeCloseTo(0.6);
    expect(idleShare({ batch: null, pipeline: null } as never)).toBe(0);
  });

  test("a resize never proposes the running layout", () => {
    expect(firstRow(rows, null, true)?.worldSize).not.toBe(2);
  });
});

describe("after a shortage of memory", () => {
  test("more slots that fit are enough; otherwise half of the micro-batch", () => {
    expect(proposedMicroBatchSize(row("4/1x4"), "memory")).toBeNull();
    expect(proposedMicroBatchSize(row("2/1x2"), "memory")).toBe(2);
    expect(proposedMicroBatchSize(row("2/1x2"), null)).toBeNull();
    const small = rowsOf({ ...options, options: options.options.slice(0, 2) }, "1x2");
    expect(firstRow(small, "memory")).toMatchObject({ worldSize: 2, isBefore: true });
  });
});
