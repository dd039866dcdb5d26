import { describe, expect, it } from "vitest";
import { quotaIn, quotaText, quotaWord, typedNumber } from "./quota";

describe("a typed quota", () => {
  it.each([
    ["", null],
    ["  ", null],
    ["8", 8],
    [" 8 ", 8],
    ["0", 0],
    ["1e3", 1000],
    ["-1", -1],
  ])("%j is %j", (text, quota) => expect(quotaIn(text)).toBe(quota));

  // As a number, each of them would be null in JSON, and would remove the limit.
  it.each(["eight", "1,000", "Infinity", "NaN", "1e999"])("%s is sent as typed", (text) =>
    expect(JSON.stringify({ quota: quotaIn(text) })).toBe(JSON.stringify({ quota: text })),
  );

  it("returns to text, and to a word of a command line", () => {
    expect(quotaText(8)).toBe("8");
    expect(quotaText(null)).toBe("");
    expect(quotaWord(" 8")).toBe("8");
    expect(quotaWord(" ")).toBe("none");
  });
});

it("a number without a limit is required", () => expect(typedNumber("x")).toBe("x"));
