import { describe, expect, it } from "vitest";
import type { Member } from "@/shared/api/types";
import {
  changedLimits,
  hasOwnLimit,
  limitOptions,
  limitsCommand,
  limitWords,
  typedOf,
  useWords,
} from "./limits";

const NO_LIMITS = { max_slots: null, max_running: null };

describe("a change of limits", () => {
  const before = { max_slots: 8, max_running: null };

  it("has the changed ones alone; an empty text removes a limit", () => {
    expect(changedLimits(typedOf(before), before)).toEqual({});
    expect(changedLimits({ max_slots: "", max_running: "4" }, before)).toEqual({
      max_slots: null,
      max_running: 4,
    });
    expect(changedLimits({ max_slots: " 8", max_running: "" }, before)).toEqual({});
  });

  it("sends text that is no number to the server, and removes nothing", () => {
    expect(changedLimits({ max_slots: "eight", max_running: "" }, before)).toEqual({
      max_slots: "eight",
    });
  });

  it("has its command line", () => {
    expect(limitOptions({ max_slots: "", max_running: "4" }, before)).toEqual([
      "--max-slots",
      "none",
      "--max-running",
      "4",
    ]);
    expect(limitsCommand("vision", { max_slots: "16", max_running: "" }, before)).toBe(
      "trainyard members limits --max-slots 16 --project vision",
    );
  });
});

describe("words", () => {
  it.each([
    [NO_LIMITS, null],
    [{ max_slots: 8, max_running: null }, "8 slots"],
    [{ max_slots: 1, max_running: 0 }, "1 slot, 0 running jobs"],
  ])("of limits %j", (limits, words) => expect(limitWords(limits)).toBe(words));

  it.each([
    [null, null, "6 slots, 1 job"],
    [8, null, "6 of 8 slots, 1 job"],
    [8, 1, "6 of 8 slots, 1 of 1 job"],
  ])("of a member with the limits %s and %s", (slots, running, words) => {
    const limits = { effective_max_slots: slots, effective_max_running: running };
    const member = { ...NO_LIMITS, held_slots: 6, running_jobs: 1, ...limits } as Member;
    expect(useWords(member)).toBe(words);
  });

  it("an own limit of 0 is a limit", () => {
    expect(hasOwnLimit(NO_LIMITS)).toBe(false);
    expect(hasOwnLimit({ max_slots: 0, max_running: null })).toBe(true);
  });
});
