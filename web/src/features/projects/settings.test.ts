import { describe, expect, it } from "vitest";
import { bodyOf, NEW, sameCommand } from "./settings";

describe("settings of a project", () => {
  it("are numbers in the request; an empty quota means no limit", () => {
    const settings = { ...NEW, name: "vision", weight: "2", max_slots: "16" };
    expect(bodyOf(settings)).toEqual({
      description: "",
      weight: 2,
      max_slots: 16,
      slot_hours_per_month: null,
    });
  });

  it("have their command line, which names only changes", () => {
    const before = { ...NEW, name: "vision", max_slots: "16" };
    expect(sameCommand(before, null)).toBe("trainyard projects create vision --max-slots 16");
    const after = { ...before, description: "a b", weight: "3", max_slots: "" };
    expect(sameCommand(after, before)).toBe(
      "trainyard projects set vision --description 'a b' --weight 3 --max-slots none",
    );
  });
});
