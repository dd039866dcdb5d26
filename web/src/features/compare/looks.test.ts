import { describe, expect, test } from "vitest";
import theme from "@/shared/theme/theme.css?raw";
import { lookOf } from "@/shared/ui/chart/looks";
import compare from "./compare.css?raw";

type Triple = readonly [number, number, number];
type Matrix = readonly [Triple, Triple, Triple];

const SLOTS = [0, 1, 2, 3, 4, 5, 6, 7];

/** Return linear red, green and blue of a colour of the stylesheet, in the light or dark theme. */
function colour(name: string, isDark: boolean): Triple {
  const found = new RegExp(`--${name}: light-dark\\(#(\\w{6}), #(\\w{6})\\)`).exec(theme + compare);
  const hex = found?.[isDark ? 2 : 1] ?? "";
  expect([name, hex.length]).toEqual([name, 6]);
  const [red, green, blue] = [0, 2, 4].map((at) => {
    const share = Number.parseInt(hex.slice(at, at + 2), 16) / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return [red ?? 0, green ?? 0, blue ?? 0];
}

const times = (matrix: Matrix, [x, y, z]: Triple) =>
  matrix.map(([a, b, c]) => a * x + b * y + c * z) as unknown as Triple;

/** Vision without cones for green (Machado, Oliveira, Fernandes 2009). */
const DEUTERANOPIA: Matrix = [
  [0.367322, 0.860646, -0.227968],
  [0.280085, 0.672501, 0.047413],
  [-0.01182, 0.04294, 0.968881],
];
const CONES: Matrix = [
  [0.4122214708, 0.5363325363, 0.0514459929],
  [0.2119034982, 0.6806995451, 0.1073969566],
  [0.0883024619, 0.2817188376, 0.6299787005],
];
const OKLAB: Matrix = [
  [0.2104542553, 0.793617785, -0.0040720468],
  [1.9779984951, -2.428592205, 0.4505937099],
  [0.0259040371, 0.7827717662, -0.808675766],
];

function apart(one: Triple, other: Triple): number {
  const [a, b] = [one, other].map((each) => {
    const cones = times(
      CONES,
      each.map((part) => Math.min(Math.max(part, 0), 1)) as unknown as Triple,
    );
    return times(OKLAB, cones.map(Math.cbrt) as unknown as Triple);
  }) as [Triple, Triple];
  return Math.hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]);
}

function contrast(one: Triple, other: Triple): number {
  const [a, b] = [one, other].map(
    ([red, green, blue]) => 0.2126 * red + 0.7152 * green + 0.0722 * blue,
  );
  const [light, dark] = [Math.max(a ?? 0, b ?? 0), Math.min(a ?? 0, b ?? 0)];
  return (light + 0.05) / (dark + 0.05);
}

describe.each([false, true])("colours of eight jobs, dark: %s", (isDark) => {
  const colours = () => SLOTS.map((slot) => colour(lookOf(slot).colour, isDark));

  test("have a contrast of 3:1 with every background", () => {
    for (const ground of ["surface", "bg", "hover"]) {
      for (const each of colours()) {
        expect(contrast(each, colour(ground, isDark))).toBeGreaterThanOrEqual(3);
      }
    }
  });

  test("differ for everyone, also without cones for green", () => {
    const seen = colours();
    for (const [at, one] of seen.entries()) {
      for (const other of seen.slice(at + 1)) {
        expect(apart(one, other)).toBeGreaterThan(0.13);
        const [a, b] = [times(DEUTERANOPIA, one), times(DEUTERANOPIA, other)];
        expect(apart(a, b)).toBeGreaterThan(0.13);
      }
    }
  });
});
