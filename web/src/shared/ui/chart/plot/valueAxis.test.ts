import { describe, expect, test } from "vitest";
import { tickLabels } from "@/shared/format/ticks";
import { labelsOf } from "../axis";
import { type Curve, stretchOf } from "../curve";
import { frameOfValues } from "../frame";
import { SINGLE } from "../looks";
import { framed, logTicks, padded } from "./valueAxis";

const curve = (steps: number[]): Curve => ({
  slot: 0,
  label: null,
  isBranch: false,
  look: SINGLE,
  begins: steps,
  x: steps,
  steps,
  last: steps,
  smooth: steps,
  min: steps,
  max: steps,
  count: steps,
  nonFinite: steps.map(() => 0),
});

describe("axes", () => {
  test("a zoom beats the data, and a single point gets room", () => {
    expect(stretchOf([curve([1, 90])], null)).toEqual([1, 90]);
    expect(stretchOf([curve([1, 90])], [20, 30])).toEqual([20, 30]);
    expect(stretchOf([curve([7])], null)).toEqual([6, 8]);
    expect(stretchOf([], null)).toEqual([0, 1]);
  });

  test("values keep a margin, and a rate never goes below zero", () => {
    expect(padded([1, 2])).toEqual([0.92, 2.08]);
    expect(padded([0.01, 1])).toEqual([0, 1.0792]);
    expect(padded([-1, 1])).toEqual([-1.16, 1.16]);
    expect(padded([2, 2])).toEqual([1.9, 2.1]);
    expect(padded([0, 0])).toEqual([0, 1]);
  });

  test("a logarithmic axis begins at the least positive value, despite zeros", () => {
    const axisOf = (...values: number[]) =>
      framed(frameOfValues([{ min: values, max: values }], true), "log");
    expect(axisOf(0, 0.02, 0.5, 1)).toEqual([0.02 / 1.1, 1.1]);
    expect(axisOf(-3, 0, 0.02, 1)).toEqual([0.02 / 1.1, 1.1]);
    expect(axisOf(0.02, 1)).toEqual([0.02 / 1.1, 1.1]);
    expect(axisOf(0, 1e-30, 0.5, 1)).toEqual([1e-6 / 1.1, 1.1]);
    expect(axisOf(1e-30, 1)).toEqual([1e-30 / 1.1, 1.1]);
    expect(axisOf(0, 0)).toEqual([0.1, 1]);
    expect(axisOf()).toEqual([0.1, 1]);
  });

  test("a logarithmic axis has round ticks, within one power of ten too", () => {
    expect(logTicks(0.00008, 2)).toEqual([1e-4, 1e-3, 1e-2, 0.1, 1]);
    expect(logTicks(0.2, 200)).toEqual([1, 10, 100]);
    expect(logTicks(1.87, 12)).toEqual([2, 5, 10]);
    expect(logTicks(2.1, 7.9)).toEqual([3, 4, 5, 6, 7]);
    expect(logTicks(2.32, 2.67)).toEqual([2.35, 2.4, 2.45, 2.5, 2.55, 2.6, 2.65]);
  });

  test("ticks of a logarithmic axis do not overlap, in one power of ten nor in fifty", () => {
    for (const [low, high] of [
      [1, 9.9],
      [2.1, 7.9],
      [1e-12, 1e3],
      [1e-30, 1e20],
      [3, 3.1],
    ] as const) {
      const ticks = logTicks(low, high, 0.12);
      const gaps = ticks.slice(1).map((value, at) => Math.log10(value / (ticks[at] ?? 1)));
      expect(ticks.length).toBeGreaterThan(2);
      expect(Math.min(...gaps) / Math.log10(high / low)).toBeGreaterThanOrEqual(0.12 - 1e-9);
      expect(new Set(tickLabels(ticks, true)).size).toBe(ticks.length);
    }
  });

  test("ticks have enough digits to distinguish them", () => {
    expect(tickLabels([2, 2.5, 3])).toEqual(["2.0", "2.5", "3.0"]);
    expect(tickLabels([0, 1, 2, 10])).toEqual(["0", "1", "2", "10"]);
    expect(tickLabels([2.2, 2.25])).toEqual(["2.20", "2.25"]);
    expect(tickLabels([0.1, 0.1 + 0.2, 0.5])).toEqual(["0.1", "0.3", "0.5"]);
    expect(tickLabels([1e-4, 2e-4, 3e-4])).toEqual(["1e-4", "2e-4", "3e-4"]);
    expect(tickLabels([1e-3, 1.01e-3, 1.02e-3])).toEqual(["1e-3", "1.01e-3", "1.02e-3"]);
    expect(tickLabels([100_000, 150_000])).toEqual(["100k", "150k"]);
    expect(tickLabels([12_500, 15_000])).toEqual(["12.5k", "15k"]);
    expect(tickLabels([500_000, 1_500_000])).toEqual(["500k", "1.5M"]);
    expect(tickLabels([264_995, 265_000, 265_005])).toEqual(["264,995", "265,000", "265,005"]);
    expect(tickLabels([0.01, 0.1, 1, 1e4], true)).toEqual(["0.01", "0.1", "1", "10k"]);
    expect(labelsOf("step", [1, 1.5, 2])).toEqual(["1", "", "2"]);
  });

  test("labels never repeat, wherever an axis stands", () => {
    for (const middle of [0, 1e-7, 0.001, 0.0199, 1, 2.31, 999.5, 9_999, 265_000, 3e6, 7.2e9]) {
      for (const unit of [1, 2, 2.5, 5]) {
        for (const power of [-6, -4, -2, 0, 2]) {
          const gap = unit * 10 ** power * Math.max(middle, 1e-6);
          const from = Math.round(middle / gap);
          const ticks = [-2, -1, 0, 1, 2].map((n) => Number(((from + n) * gap).toPrecision(12)));
          expect([ticks, new Set(tickLabels(ticks)).size]).toEqual([ticks, ticks.length]);
        }
      }
    }
  });
});
