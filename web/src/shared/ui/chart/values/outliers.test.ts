import { describe, expect, test } from "vitest";
import type { Buckets } from "../curve";
import { frameOfValues } from "../frame";
import losses from "./realLosses.json";
import { spikesOf } from "./spikes";
import { curveOf } from "./testCurves";

const points = (count: number, value: (step: number) => number): number[] =>
  Array.from({ length: count }, (_, step) => value(step));

/** Return the values in the form of the server's answer: extremes of at most a thousand buckets. */
function bucketed(values: readonly number[]): Buckets {
  const size = Math.ceil(values.length / 1000);
  const parts = Array.from({ length: Math.ceil(values.length / size) }, (_, at) =>
    values.slice(at * size, (at + 1) * size),
  );
  return {
    min: parts.map((part) => part.reduce((a, b) => Math.min(a, b))),
    max: parts.map((part) => part.reduce((a, b) => Math.max(a, b))),
  };
}

const noise = (step: number) => Math.abs((Math.sin(step * 12.9898) * 43758.5453) % 1);
const least = (values: readonly number[]) => values.reduce((a, b) => Math.min(a, b));
const most = (values: readonly number[]) => values.reduce((a, b) => Math.max(a, b));
const decay = (step: number) => 1 / (step + 1);
const sharp = (step: number) => 2 + 8.9 * Math.exp(-step / 40) + 0.1 * noise(step);
const warmed = (step: number) => Math.min((step + 1) / 100, Math.exp(-step / 60));

describe("ordinary curves are shown whole", () => {
  test.each(Object.entries(losses))("%s", (_, values) => {
    for (const some of [values, values.slice(0, 20), values.slice(3), values.slice(30)]) {
      expect(frameOfValues([bucketed(some)], false)).toMatchObject({
        values: [least(some), most(some)],
        above: null,
        below: null,
      });
    }
  });

  test.each([700, 5951, 100_000])("decays and warm-ups of %i steps", (count) => {
    const shapes: Record<string, (step: number) => number> = {
      "one over the step": decay,
      "its square": (step) => decay(step) ** 2 + 1e-3,
      "its negation": (step) => -decay(step),
      exponential: (step) => 10.9 * Math.exp(-step / (count / 30)) + 0.3,
      "within the first steps": sharp,
      "noisy around a tiny end": (step) => (0.01 + 10.9 * decay(step / 10)) * (0.5 + noise(step)),
      perplexity: (step) => Math.exp(1.5 + 9.4 * decay(step / 20)),
      "a warm-up, then a decay": (step) => warmed(step * (700 / count)),
      "a warm-up to a constant": (step) => Math.min(step / 500, 1) * 3e-4,
      "a rising count": (step) => step * 8192,
      "an accuracy that begins at chance": (step) => 0.8 - 0.799 * Math.exp(-step / (count / 8)),
      "a change of the data half way": (step) => (step < count / 2 ? 2 : 30) + noise(step),
      "zero except for some": (step) => (step % 50 === 7 ? 3 + noise(step) : 0),
      "a constant": () => 5,
    };
    for (const [name, shape] of Object.entries(shapes)) {
      const values = points(count, shape);
      const { values: shown, above, below } = frameOfValues([bucketed(values)], false);
      expect([name, shown?.[1], above, below]).toEqual([name, most(values), null, null]);
    }
  });

  test("of a million steps, most of them in the first bucket", () => {
    for (const shape of [decay, sharp]) {
      const values = points(1_000_000, shape);
      expect(frameOfValues([bucketed(values)], false).values?.[1]).toBe(most(values));
    }
  });

  test("in one chart, whatever their ends", () => {
    const all = Object.values(losses).map(bucketed);
    const loss = bucketed(points(900, (step) => 2 + 8 * decay(step / 30)));
    for (const one of all.slice(0, 9)) {
      expect(frameOfValues([one, loss], false)).toMatchObject({ above: null, below: null });
    }
  });
});

describe("outliers are cut if they would flatten the rest", () => {
  const places = [0.02, 0.3, 0.7, 0.999];
  const cases = [700, 5951, 40_000].flatMap((count) =>
    places.flatMap((share) => [1e9, -1e9, 3.4e38].map((strange) => ({ count, share, strange }))),
  );

  test.each(cases)("$strange at $share of $count steps", ({ count, share, strange }) => {
    for (const shape of [sharp, decay, (step: number) => 0.4 + noise(step)]) {
      const values = points(count, shape);
      const [low, high] = [least(values), most(values)];
      const at = Math.floor(count * share);
      for (const each of [at, at + 1]) if (each < count) values[each] = strange;
      const frame = frameOfValues([bucketed(values)], false);
      expect(frame.above ?? frame.below).toBe(strange);
      expect(frame.values?.[0]).toBeGreaterThanOrEqual(low);
      expect(frame.values?.[1]).toBe(high);
    }
  });

  test("a first value too, beyond the start of any decay", () => {
    const values = points(5951, sharp).with(0, 1e9);
    expect(frameOfValues([bucketed(values)], false).above).toBe(1e9);
    expect(frameOfValues([bucketed(points(700, sharp).with(0, 1e9))], false).above).toBe(1e9);
  });

  test("but a spike that does not flatten the rest is on the axis", () => {
    const norms = points(5951, (step) => 0.7 + 1.5 * decay(step / 300) + 0.4 * noise(step));
    norms[265] = 16.14;
    expect(frameOfValues([bucketed(norms)], false).values?.[1]).toBe(16.14);
    expect(frameOfValues([bucketed(norms.slice(259, 271))], false).values?.[1]).toBe(16.14);
  });

  test("smooth growth is shown up to a limit", () => {
    const grown = points(1000, (step) => 1 + Math.exp((step - 900) / 30));
    expect(frameOfValues([bucketed(grown)], false).above).toBeNull();
    const lost = points(1000, (step) => 1 + Math.exp((step - 900) / 3));
    expect(frameOfValues([bucketed(lost)], false).above).toBe(most(lost));
  });
});

describe("spikes", () => {
  test("are values far from their neighbours, in both directions", () => {
    const values = points(200, (step) => 1 + 0.2 * noise(step));
    expect(spikesOf(curveOf(values.with(50, 9).with(120, -4)))).toEqual([
      { at: 50, value: 9 },
      { at: 120, value: -4 },
    ]);
  });

  test("noise, a decay after its start, and few points have none", () => {
    expect(spikesOf(curveOf(points(400, noise)))).toEqual([]);
    expect(spikesOf(curveOf(points(400, decay))).filter(({ at }) => at > 2)).toEqual([]);
    expect(spikesOf(curveOf([1, 9, 1]))).toEqual([]);
  });
});
