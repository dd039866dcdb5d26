import { describe, expect, test } from "vitest";
import { looksLikeError, nextMatch, partsOf, plainText } from "./text";

describe("a line of output", () => {
  test("loses colours, titles and other terminal codes", () => {
    expect(plainText("\x1b[31mERROR\x1b[0m \x1b[1;38;5;196mNCCL\x1b[K")).toBe("ERROR NCCL");
    expect(plainText("\x1b]0;title\x07text")).toBe("text");
    expect(plainText("a\x00b\tc")).toBe("ab\tc");
  });

  test("shows what a carriage return did not overwrite", () => {
    expect(plainText("10%\r50%\r100%")).toBe("100%");
    expect(plainText("done\r")).toBe("done");
  });

  test("errors are distinguished from words that contain the letters", () => {
    expect(looksLikeError("torch.OutOfMemoryError: CUDA")).toBe(true);
    expect(looksLikeError("Traceback (most recent call last):")).toBe(true);
    expect(looksLikeError("a terrorful line without any")).toBe(false);
  });
});

describe("search", () => {
  test("matches are split off, whatever their case", () => {
    expect(partsOf("Loss lOsS", "loss")).toEqual([
      { text: "Loss", isMatch: true },
      { text: " ", isMatch: false },
      { text: "lOsS", isMatch: true },
    ]);
    expect(partsOf("text", "")).toEqual([{ text: "text", isMatch: false }]);
  });

  test("wraps around at both ends", () => {
    expect(nextMatch([3, 7, 9], 3, 1)).toBe(7);
    expect(nextMatch([3, 7, 9], 9, 1)).toBe(3);
    expect(nextMatch([3, 7, 9], 3, -1)).toBe(9);
    expect(nextMatch([3, 7, 9], null, 1)).toBe(3);
    expect(nextMatch([3, 7, 9], null, -1)).toBe(9);
    expect(nextMatch([], 3, 1)).toBeNull();
  });
});
