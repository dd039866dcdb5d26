// Labels of ticks: as many digits as tell each from the others, in the format of all numbers.
import { count, exponential, fixed } from "./numbers";

/** Digits of a number with a prefix; a longer one is written out, where it is not too long. */
const PREFIXED_DIGITS = 4;
const WRITTEN_OUT = 1e7;
const PREFIXES: readonly (readonly [number, string])[] = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];
/** Ticks are round numbers: what lies behind these digits is an error of rounding. */
const EXACT = 12;
const LARGE = 1e4;
const SMALL = 1e-2;

/** Labels of ticks on one axis; of a logarithmic one each is as large or small as itself. */
export function tickLabels(values: readonly number[], isLog = false): string[] {
  const greatest = Math.max(...values.map(Math.abs));
  const isPrefixed = values.every(
    (value) => digitsOf(value / prefixOf(value)[0]) <= PREFIXED_DIGITS,
  );
  const decimals = Math.max(...values.map(decimalsOf));
  return values.map((value) => {
    const size = isLog ? Math.abs(value) : greatest;
    if (value === 0) return "0";
    if (size >= LARGE) return large(value, isPrefixed);
    if (size < SMALL) return exponential(value, EXACT);
    return plain(value, isLog ? decimalsOf(value) : decimals);
  });
}

function plain(value: number, decimals: number): string {
  return decimals === 0 ? count(value) : fixed(value, decimals);
}

function large(value: number, isPrefixed: boolean): string {
  const [unit, prefix] = prefixOf(value);
  const isLong = Math.abs(value) >= WRITTEN_OUT || !Number.isInteger(value);
  return isPrefixed || isLong ? `${exact(value / unit)}${prefix}` : count(value);
}

function prefixOf(value: number): readonly [number, string] {
  return PREFIXES.find(([unit]) => Math.abs(value) >= unit) ?? [1, ""];
}

function exact(value: number): number {
  return Number(value.toPrecision(EXACT));
}

function digitsOf(value: number): number {
  return exact(Math.abs(value))
    .toExponential()
    .replace(/e.*|\D/g, "").length;
}

/** Decimals of a number as it is, twelve at most. */
function decimalsOf(value: number): number {
  const [mantissa = "", exponent = "0"] = exact(value).toExponential().split("e");
  const digits = mantissa.replace(/^-?\d\.?/, "").length;
  return Math.min(Math.max(digits - Number(exponent), 0), 12);
}
