import { describe, expect, it } from "vitest";
import { bytes, count, metric, numberOf, percent, plural, short, shortCount } from "./numbers";
import { formatOf } from "./series";
import { command, quoted } from "./shell";
import { tickLabels } from "./ticks";
import { age, duration } from "./time";

describe("numbers", () => {
  it.each([
    [2.34191234, "2.3419"],
    [0.5, "0.5"],
    [0.001, "1e-3"],
    [0.00012345, "1.234e-4"],
    [0.0312, "0.0312"],
    [1, "1"],
    [-0.25, "-0.25"],
    [12345.678, "12346"],
    [123456.7, "123,457"],
    [1.2345e-5, "1.234e-5"],
    [7.1e6, "7.1e6"],
    [0, "0"],
    ["NaN", "NaN"],
    ["-Infinity", "−∞"],
    [null, "–"],
  ])("writes the metric %s as %s", (value, text) => expect(metric(value)).toBe(text));

  it.each([
    [0, "0"],
    [812.34, "812"],
    [999.6, "1.00k"],
    [45_120, "45.1k"],
    [999_700, "1.00M"],
    [1_204_000, "1.20M"],
    [9.88e19, "98.8E"],
    [null, "–"],
  ])("shortens %s to %s", (value, text) => expect(short(value)).toBe(text));

  it("counts parameters in billions, not in giga", () => expect(shortCount(8.03e9)).toBe("8.03B"));

  it.each([
    [0, "0 B"],
    [999, "999 B"],
    [1000, "0.977 KiB"],
    [1536, "1.50 KiB"],
    [139 * 2 ** 30, "139 GiB"],
    [1023.7 * 2 ** 30, "1.00 TiB"],
  ])("writes %s bytes as %s", (value, text) => expect(bytes(value)).toBe(text));

  it("reads numbers that JSON cannot express", () => {
    expect(numberOf("NaN")).toBeNaN();
    expect(numberOf("Infinity")).toBe(Number.POSITIVE_INFINITY);
    expect(numberOf("7")).toBeNull();
  });

  it("puts nouns into the plural", () => {
    expect([plural(1, "slot"), plural(1200, "slot")]).toEqual(["1 slot", "1,200 slots"]);
    expect(count(null)).toBe("–");
    expect([percent(0.125), percent(0.5), percent(null)]).toEqual(["12.5 %", "50 %", "–"]);
    expect([percent(0.07), percent(0.9996)]).toEqual(["7 %", "100 %"]);
  });
});

describe("one format", () => {
  const sources = import.meta.glob<string>("../../**/*.{ts,tsx}", {
    query: "?raw",
    import: "default",
    eager: true,
  });

  it("is that of these files: no page formats a number by itself", () => {
    const own = Object.entries(sources).filter(
      ([path, text]) =>
        !/^\.\/|\/shared\/format\/|\.test\.|schema\.ts$/.test(path) &&
        /\.(toFixed|toExponential|toLocaleString)\(|NumberFormat\(/.test(text),
    );
    expect(Object.keys(sources).length).toBeGreaterThan(200);
    expect(own.map(([path]) => path)).toEqual([]);
  });

  it("writes a value as the tick at its height, within the digits of both", () => {
    for (const value of [0.001, 0.0003, 0.02, 0.5, 2, 1.25, 40, 1e-7]) {
      expect(metric(value)).toBe(tickLabels([value], true)[0]);
    }
  });
});

describe("times", () => {
  it.each([
    [0, "0 s"],
    [0.0004, "0.4 ms"],
    [0.06, "0.06 s"],
    [0.524, "0.52 s"],
    [0.999, "1.0 s"],
    [4.21, "4.2 s"],
    [9.97, "10 s"],
    [59.7, "1 min 00 s"],
    [200, "3 min 20 s"],
    [7_500, "2 h 05 min"],
    [529_200, "6 d 03 h"],
    [Number.NaN, "–"],
  ])("writes %s seconds as %s", (seconds, text) => expect(duration(seconds)).toBe(text));

  it.each([
    [3, "now"],
    [59.9, "59 s"],
    [125, "2 min"],
    [100_000, "27 h"],
    [300_000, "3 d"],
  ])("writes the age of %s seconds as %s", (seconds, text) => expect(age(seconds)).toBe(text));
});

describe("command lines", () => {
  it("quotes words that a shell would split", () => {
    expect(quoted("training.steps=200")).toBe("training.steps=200");
    expect(quoted("it's")).toBe(`'it'\\''s'`);
    expect(command("ps", "--search", "a b")).toBe("trainyard ps --search 'a b'");
  });
});

describe("series", () => {
  it("values are written in the unit that the name carries", () => {
    expect(formatOf("checkpoint/stall_seconds")(90)).toBe("1 min 30 s");
    expect(formatOf("memory/peak_reserved_gib")(61.25)).toBe("61.3 GiB");
    expect(formatOf("memory/peak_rss_gib")(0.38125)).toBe("0.381 GiB");
    expect(formatOf("train/tokens")(1_234_567)).toBe("1.23M");
    expect(formatOf("train/loss")(2.34567)).toBe("2.3457");
  });
});
