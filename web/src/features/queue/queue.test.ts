import { describe, expect, test } from "vitest";
import type { NodeView } from "@/shared/api/types";
import { heldSlots } from "./holders";
import { startWords } from "./start";

function node(slots: number, jobs: [string, number][], more: Partial<NodeView> = {}): NodeView {
  const held = jobs.reduce((sum, [, count]) => sum + count, 0);
  return {
    online: true,
    draining: false,
    hardware: { slots },
    free_slots: slots - held,
    withheld: [],
    allocations: jobs.map(([id, count]) => ({
      job_id: id,
      job_name: `job-${id}`,
      allocation: { slots: Array.from({ length: count }, (_, slot) => slot) },
    })),
    ...more,
  } as unknown as NodeView;
}

describe("holders of slots", () => {
  test("a job on several nodes is one holder, and the largest is first", () => {
    const { holders } = heldSlots([
      node(4, [["a", 1]]),
      node(4, [
        ["b", 2],
        ["a", 2],
      ]),
    ]);
    expect(holders).toEqual([
      { jobId: "a", name: "job-a", slots: 3, nodes: 2 },
      { jobId: "b", name: "job-b", slots: 2, nodes: 1 },
    ]);
  });

  test("held, free, drained and withheld slots add up to all slots", () => {
    const { held, free, drained, withheld, total } = heldSlots([
      node(4, [["a", 1]]),
      node(4, [["a", 1]], { draining: true }),
      node(2, [], { online: false }),
      node(2, [], { free_slots: 1, withheld: [{ slot: 0, reason: "too hot" }] }),
    ]);
    expect([held, free, drained, withheld, total]).toEqual([2, 4, 5, 1, 12]);
  });
});

test("an expected start in the past is now", () => {
  const now = Date.parse("2026-11-21T12:00:00Z");
  expect(startWords("2026-11-21T12:05:20Z", now)).toBe("in 5 min 20 s");
  expect(startWords("2026-11-21T11:59:00Z", now)).toBe("now");
});
