import { describe, expect, test } from "vitest";
import { type Curve, stretchOf } from "../curve";
import { SINGLE } from "../looks";
import { logTicks, padded, tick } from "./valueAxis";

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

  test("a logarithmic axis has round ticks, within one power of ten too", () => {
    expect(logTicks(0.00008, 2)).toEqual([1e-4, 1e-3, 1e-2, 0.1, 1]);
    expect(logTicks(0.2, 200)).toEqual([1, 10, 100]);
    expect(logTicks(1.87, 12)).toEqual([2, 5, 10]);
    expect(logTicks(2.1, 7.9)).toEqual([3, 4, 5, 6, 7]);
    expect(logTicks(2.32, 2.67)).toEqual([2.35, 2.4, 2.45, 2.5, 2.55, 2.6, 2.65]);
  });

  test("ticks have as many digits as tell them apart", () => {
    expect(tick(2.5, 3, 0.5)).toBe("2.5");
    expect(tick(2, 3, 1)).toBe("2");
    expect(tick(2.25, 2.5, 0.05)).toBe("2.25");
    expect(tick(0.0003, 0.0003, 0.0001)).toBe("3e-4");
    expect(tick(3.25, 3.5, 0.25)).toBe("3.25");
    expect(tick(0.1 + 0.2, 0.5, 0.1)).toBe("0.3");
    expect(tick(150_000, 150_000, 50_000)).toBe("150k");
    expect(tick(100_000, 150_000, 50_000)).toBe("100k");
    expect(tick(12_500, 15_000, 2_500)).toBe("12.5k");
    expect(tick(35_000, 40_000, 5_000)).toBe("35k");
    expect(tick(1_000_000, 1_500_000, 500_000)).toBe("1M");
    expect(tick(0, 10, 1)).toBe("0");
  });
});
