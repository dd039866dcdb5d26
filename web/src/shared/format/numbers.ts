// Numbers as text: a fixed number of significant digits, so that columns stay still while they change.

/** Text in place of an absent value. */
export const NONE = "–";

/** Return a number that may have come as `"NaN"` or `"Infinity"`; null where there is none. */
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

/** `1 slot`, `3 slots` */
export function plural(value: number, noun: string, nouns = `${noun}s`): string {
  return `${count(value)} ${value === 1 ? noun : nouns}`;
}

/** A loss or another metric with five significant digits: `2.3419`, `1.234e-5`, `NaN`, `∞`. */
export function metric(value: unknown): string {
  const number = numberOf(value);
  if (number === null) return NONE;
  if (Number.isNaN(number)) return "NaN";
  if (!Number.isFinite(number)) return number > 0 ? "∞" : "−∞";
  if (number === 0) return "0";
  const size = Math.abs(number);
  if (size >= 1e6 || size < 1e-3) return number.toExponential(3).replace("e+", "e");
  const text = number.toPrecision(5);
  return size >= 1e5 ? GROUPED.format(number) : text;
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

/** `12.5 %`, without decimals from ten on unless they matter. */
export function percent(share: number | null | undefined): string {
  if (share == null) return NONE;
  const value = share * 100;
  return `${Number.isInteger(value) ? value : value.toFixed(1)} %`;
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

/** `1.30 GiB/s`, from bytes and the time that they took. */
export function bandwidth(size: number, seconds: number | null | undefined): string {
  return seconds ? `${bytes(size / seconds)}/s` : NONE;
}

/** A large number without zeros at its end: `1.5k` where `short` has `1.50k`. */
export function shortest(value: number): string {
  return short(value).replace(/\.(\d*?)0+(?=[kMGTP]$)/, (_, kept: string) =>
    kept ? `.${kept}` : "",
  );
}
