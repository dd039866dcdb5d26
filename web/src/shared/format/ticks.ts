// Labels of ticks: enough digits to distinguish them, in the format of all numbers.
import { count, exponential, fixed } from "./numbers";

/** Most digits of a number with a prefix; a longer number is written out unless it is too long. */
const PREFIXED_DIGITS = 4;
const WRITTEN_OUT = 1e7;
const PREFIXES: readonly (readonly [number, string])[] = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];
/** Ticks are round numbers: digits beyond this count are rounding errors. */
const EXACT = 12;
const LARGE = 1e4;
const SMALL = 1e-2;

/** Return the labels of one axis' ticks; on a logarithmic axis each tick is formatted by its own size. */
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

/** Return the number of decimals of a number, at most twelve. */
function decimalsOf(value: number): number {
  const [mantissa = "", exponent = "0"] = exact(value).toExponential().split("e");
  const digits = mantissa.replace(/^-?\d\.?/, "").length;
  return Math.min(Math.max(digits - Number(exponent), 0), 12);
}
