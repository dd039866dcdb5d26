import { describe, expect, test } from "vitest";
import type { Buckets } from "./curve";
import { frameOfValues } from "./frame";

const curve = (...values: (number | null)[]): Buckets => ({ min: values, max: values });
const falling = Array.from({ length: 100 }, (_, n) => 2 + 9 / (1 + n / 4));
const loss = curve(...falling);
const diverging = curve(...falling.map((value, n) => (n < 20 ? value : value * 1.3 ** (n - 20))));

describe("the values of an axis", () => {
  test("are those of all curves if none leaves the usual range", () => {
    const slower = curve(...falling.map((value) => value * 1.5));
    const found = frameOfValues([loss, slower], false);
    expect(found.values).toEqual([falling.at(-1), 16.5]);
    expect(found).toMatchObject({ above: null, below: null });
    expect(found).toEqual(frameOfValues([loss, slower], true));
  });

  test("are not stretched by one diverging run, whatever its place", () => {
    for (const curves of [
      [loss, diverging],
      [diverging, loss, loss],
    ]) {
      const { values, above } = frameOfValues(curves, false);
      expect(values?.[0]).toBe(falling.at(-1));
      expect(values?.[1]).toBeGreaterThanOrEqual(11);
      expect(values?.[1]).toBeLessThan(20);
      expect(above).toBeGreaterThan(1e9);
    }
    expect(frameOfValues([loss, diverging], true).values?.[1]).toBeGreaterThan(1e9);
    expect(frameOfValues([loss, diverging], true).above).toBeNull();
  });

  test("exclude spikes of a single run, and keep its start", () => {
    const spiky = curve(...falling.with(40, 4e6).with(70, -3e5));
    const { values, above, below } = frameOfValues([spiky], false);
    expect([values?.[1], above, below]).toEqual([11, 4e6, -3e5]);
  });

  test("have the least positive value that is on the axis", () => {
    const negative = curve(...falling.map((value) => -value).with(40, 4e6));
    expect(frameOfValues([negative], false)).toMatchObject({ positive: null, above: 4e6 });
    expect(frameOfValues([negative], true).positive).toBe(4e6);
    expect(frameOfValues([curve(0, 0.5, null, 1)], false).positive).toBe(0.5);
  });

  test("hold a whole curve of another scale: it did not diverge", () => {
    const rates = [curve(4000, 4010, 3990), curve(90_000, 91_000, 90_500)];
    expect(frameOfValues(rates, false)).toMatchObject({
      values: [3990, 91_000],
      above: null,
      below: null,
    });
  });

  test("hold a warm-up from zero, ten times another rate, and mostly zero values", () => {
    const rate = (peak: number) => curve(...[0, 0.2, 0.6, 1, 1, 1, 0.5, 0.1].map((v) => v * peak));
    expect(frameOfValues([rate(1e-4), rate(1e-3)], false).above).toBeNull();
    expect(frameOfValues([curve(0, 0, 0, 0, 0, 7)], false).values).toEqual([0, 7]);
  });

  test("are none without a finite value; gaps do not count", () => {
    expect(frameOfValues([], false)).toMatchObject({ values: null, above: null, below: null });
    expect(frameOfValues([curve(null, null)], false).values).toBeNull();
    expect(frameOfValues([curve(1, null, 2)], false).values).toEqual([1, 2]);
  });
});
