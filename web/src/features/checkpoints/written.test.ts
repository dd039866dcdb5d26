// The text of a row about the ranks that wrote a checkpoint.
import { expect, it } from "vitest";
import { writtenWords } from "./Written";

const GIB = 2 ** 30;

it.each([
  [{ writers: 2, write_seconds: 2 }, "2 writers, 1.30 GiB/s"],
  [{ writers: 1, write_seconds: 0 }, "1 writer, –"],
  [{ writers: null, write_seconds: null }, "in 3.40 s"],
])("shows %o as %s", (part, text) =>
  expect(writtenWords({ size: 2.6 * GIB, save_seconds: 3.4, ...part })).toBe(text),
);
