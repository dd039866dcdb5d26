import { describe, expect, test } from "vitest";
import type { Attempt, Job } from "@/shared/api/types";
import { barsOf, parentNumber, upToDate } from "./lineage";

function attempt(
  number: number,
  [start_step, last_step]: [number, number],
  parent: [number, number] | null,
  on_lineage = true,
): Attempt {
  const parent_checkpoint_id = parent ? `job.a${parent[0]}.step-${parent[1]}` : null;
  return { number, start_step, last_step, parent_checkpoint_id, on_lineage } as Attempt;
}

test("the running attempt has the step of its job, an ended one its own last step", () => {
  const attempts = [
    { ...attempt(2, [27, 29], [1, 27]), ended_at: null },
    { ...attempt(1, [0, 27], null), ended_at: "2026-11-29T16:00:00Z" },
  ];
  const lastSteps = (number: number, step: number) =>
    upToDate(attempts, { attempt: number, progress: { step } as Job["progress"] }).map(
      ({ last_step }) => last_step,
    );
  expect(lastSteps(2, 41)).toEqual([41, 27]);
  expect(lastSteps(2, 28)).toEqual([29, 27]);
  expect(lastSteps(1, 41)).toEqual([29, 27]);
});

describe("lineage of attempts", () => {
  test("a straight line: each keeps the steps that the next one did not repeat", () => {
    const attempts = [attempt(2, [40, 100], [1, 40]), attempt(1, [0, 50], null)];
    expect(barsOf(attempts, "job")).toEqual([
      { attempt: 2, kept: [0.4, 1], left: null, origin: { row: 1, at: 0.4 } },
      { attempt: 1, kept: [0, 0.4], left: [0.4, 0.5], origin: null },
    ]);
  });

  test("a branch abandons a whole attempt", () => {
    const attempts = [
      attempt(3, [20, 30], [1, 20]),
      attempt(2, [40, 100], [1, 40], false),
      attempt(1, [0, 40], null),
    ];
    const bars = barsOf(attempts, "job");
    expect(bars[0]).toEqual({
      attempt: 3,
      kept: [0.2, 0.3],
      left: null,
      origin: { row: 2, at: 0.2 },
    });
    expect(bars[1]).toMatchObject({ kept: null, left: [0.4, 1] });
    expect(bars[2]).toMatchObject({ kept: [0, 0.2], left: [0.2, 0.4] });
  });

  test("an attempt without steps has no length, nor has any without a step at all", () => {
    const bars = barsOf([attempt(2, [200, 0], [1, 200]), attempt(1, [0, 200], null)], "job");
    expect(bars[0]).toMatchObject({ kept: [1, 1], left: null });
    expect(bars[1]).toMatchObject({ kept: [0, 1] });
    expect(barsOf([attempt(1, [0, 0], null)], "job")[0]).toMatchObject({
      kept: [0, 0],
      left: null,
    });
  });

  test("a pruned parent, or a cycle of damaged records, ends the lineage", () => {
    expect(barsOf([attempt(2, [10, 20], [9, 10])], "job")[0]).toMatchObject({ origin: null });
    expect(barsOf([attempt(2, [10, 20], [2, 10])], "job")).toHaveLength(1);
  });

  test("parents are read from checkpoint ids", () => {
    expect(parentNumber("01abc.a12.step-400", "01abc")).toBe(12);
    expect(parentNumber("nonsense", "01abc")).toBeNull();
    expect(parentNumber(null, "01abc")).toBeNull();
  });

  test("a fork comes from no attempt of its own job", () => {
    const fork = { ...attempt(2, [40, 60], [1, 40]), parent_checkpoint_id: "other.a1.step-40" };
    const bars = barsOf([fork, attempt(1, [40, 50], null, false)], "job");
    expect(bars[0]).toMatchObject({ origin: null });
    expect(bars[1]).toMatchObject({ kept: null });
  });
});
