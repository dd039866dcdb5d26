// Numbers as text, for every page: no other module of the dashboard formats a number.

/** Text for an absent value. */
export const NONE = "–";

/** Return a number, also from `"NaN"` or `"Infinity"`; null for any other value. */
export function numberOf(value: unknown): number | null {
  if (typeof value === "number") return value;
  if (value === "NaN") return Number.NaN;
  if (value === "Infinity") return Number.POSITIVE_INFINITY;
  if (value === "-Infinity") return Number.NEGATIVE_INFINITY;
  return null;
}

const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** `12,345` */
export function count(value: number | null | undefined): string {
  return value == null ? NONE : GROUPED.format(value);
}

const TENTHS = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });

/** Hours with one decimal at most: `1,204.5` */
export function hours(value: number): string {
  return TENTHS.format(value);
}

/** `1 slot`, `3 slots` */
export function plural(value: number, noun: string, nouns = `${noun}s`): string {
  return `${count(value)} ${value === 1 ? noun : nouns}`;
}

/**
 * A loss or another metric: `2.3419`, `0.5`, `1e-3`, `1.234e-5`, `NaN`, `∞`.
 *
 * At most five significant digits, without trailing zeros, like ticks; with an exponent below 0.01 and
 * from a million.
 */
export function metric(value: unknown): string {
  const number = numberOf(value);
  if (number === null) return NONE;
  if (Number.isNaN(number)) return "NaN";
  if (!Number.isFinite(number)) return number > 0 ? "∞" : "−∞";
  const size = Math.abs(number);
  if (number !== 0 && (size >= 1e6 || size < 1e-2)) return exponential(number, 4);
  return size >= 1e5 ? GROUPED.format(number) : significant(number, 5);
}

/** At most `digits` significant digits, without trailing zeros: `0.381`, `61.3`, `2`. */
export function significant(value: number, digits: number): string {
  return String(Number(value.toPrecision(digits)));
}

/** `1.25e-3`, with at most `digits` significant digits. */
export function exponential(value: number, digits: number): string {
  const [mantissa = "", exponent = "0"] = value.toExponential(digits - 1).split("e");
  return `${Number(mantissa)}e${Number(exponent)}`;
}

/** A number with a fixed count of decimals: `1.04`, `0.95`. */
export function fixed(value: number, decimals: number): string {
  return value.toFixed(decimals);
}

const SHORT: readonly (readonly [number, string])[] = [
  [1e24, "Y"],
  [1e21, "Z"],
  [1e18, "E"],
  [1e15, "P"],
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];

/** Three significant digits with a decimal prefix: `1.23k`, `45.6M`. Below 1,000 as it is. */
export function short(value: number | null | undefined): string {
  if (value == null) return NONE;
  for (const [size, prefix] of SHORT) {
    // 999.6 would become `1000`, which is `1.00k`.
    if (Math.abs(value) >= size * 0.9995) return `${(value / size).toPrecision(3)}${prefix}`;
  }
  return Number.isInteger(value) ? String(value) : value.toPrecision(3);
}

/** A count of parameters or tokens: `8.03B` rather than `8.03G`. */
export function shortCount(value: number | null | undefined): string {
  return short(value).replace("G", "B");
}

/** `12.5 %`, `7 %`: one decimal unless it is 0. */
export function percent(share: number | null | undefined): string {
  if (share == null) return NONE;
  const value = Math.round(share * 1000) / 10;
  return `${Number.isInteger(value) ? value : fixed(value, 1)} %`;
}

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** `1.50 GiB`, three significant digits. */
export function bytes(value: number | null | undefined): string {
  if (value == null) return NONE;
  let size = value;
  let unit = 0;
  while (Math.abs(size) >= 999.5 && unit < BINARY.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(size) : size.toPrecision(3)} ${BINARY[unit]}`;
}

/** `1.30 GiB/s`, from bytes and seconds. */
export function bandwidth(size: number, seconds: number | null | undefined): string {
  return seconds ? `${bytes(size / seconds)}/s` : NONE;
}
