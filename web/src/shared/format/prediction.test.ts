import { expect, test } from "vitest";
import { calibrationWords } from "./prediction";

const MEMORY = { fixed: 0, lasting: 1, gathered: 1, activations: 1, logits: 1 };
const SHEET = {
  device_name: "H100",
  runs: 0,
  seconds: {},
  memory: MEMORY,
  memory_margin: 1,
  accuracy: null,
};
const ACCURACY = {
  step_median: 0.041,
  step_p95: 0.12,
  memory_median: 0.02,
  memory_p95: 0.05,
  fits_judged: 11,
  fits_wrong: 1,
};

test("a data sheet is named as such", () => {
  expect(calibrationWords(SHEET)).toBe(
    "From the data sheet of H100: no run has ended on it yet, so the order is rough.",
  );
});

test("runs come with the errors of their predictions", () => {
  expect(calibrationWords({ ...SHEET, runs: 12, accuracy: ACCURACY })).toBe(
    "Learned from 12 runs on H100; step time off by 4.1 % in the median, 12 % at p95; " +
      "memory by 2 % and 5 %; 1 of 11 runs predicted to fit did not.",
  );
});

test("errors without runs are omitted", () => {
  const accuracy = { ...ACCURACY, step_median: null, step_p95: null };
  expect(calibrationWords({ ...SHEET, runs: 1, accuracy })).toBe(
    "Learned from 1 run on H100; memory by 2 % and 5 %; 1 of 11 runs predicted to fit did not.",
  );
});
