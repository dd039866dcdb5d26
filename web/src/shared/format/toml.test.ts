import { describe, expect, it } from "vitest";
import { type JsonObject, nullsIn } from "./document";
import { readSpecText, sparseToml, specToml } from "./toml";

const SPEC: JsonObject = {
  name: "a \"quoted\" 'name'",
  description: "two\nlines\\ and \u00e9\u007f\ttab",
  tags: ["x", "y z"],
  program: {
    command: ["python", "-c", "print('#')"],
    arguments: { "a.b": 1, lr: 1e-4, big: 1e300, neg: -0.5, on: true, list: [1, "two"] },
    code: { folder: "data:mine" },
  },
  env: { EMPTY: "", TOKEN: "$x = [1]" },
};

describe("TOML", () => {
  it("is read as it was written, with fields before sections in the given order", () => {
    const text = specToml(SPEC);
    expect(readSpecText(text)).toEqual({ spec: SPEC, error: null });
    const headers = text.split("\n").filter((line) => line.startsWith("["));
    expect(headers).toEqual(["[program]", "[program.arguments]", "[program.code]", "[env]"]);
  });

  it("keeps the layouts of a program, each with its arguments", () => {
    const layouts: JsonObject[] = [
      { dp_shard: 4 },
      { dp_shard: 2, tp: 2, arguments: { "x.tp": 2, on: true } },
    ];
    const spec: JsonObject = { program: { command: ["x.py"], layouts } };
    const text = specToml(spec);
    expect(text).toContain("[[program.layouts]]");
    expect(readSpecText(text)).toEqual({ spec, error: null });
  });

  it("omits nulls, which a comment may name", () => {
    const spec = { training: { max_grad_norm: null, steps: 5 } };
    expect(specToml(spec)).toBe("[training]\nsteps = 5\n");
    expect(specToml({})).toBe("");
    const text = sparseToml({ spec, hidden: ["/env/HF_TOKEN"] });
    expect(text.split("\n").slice(0, 3)).toEqual([
      "# env.HF_TOKEN is not shown here: enter it again, or leave it out.",
      "# training.max_grad_norm is null, which TOML cannot express: this text has its default.",
      "[training]",
    ]);
    expect(readSpecText(text).spec).toEqual({ training: { steps: 5 } });
  });

  it("has rows not converted to a table yet, except rows without a value", () => {
    const env = [["HF_TOKEN", null], ["", "x"], null, { a: [null] }];
    expect(readSpecText(specToml({ resources: { env } })).spec).toEqual({
      resources: { env: [["", "x"], { a: [] }] },
    });
  });

  it("names hidden values of such rows too", () => {
    const env = [
      ["HF_TOKEN", null],
      ["", "x"],
    ];
    expect(nullsIn({ env })).toEqual(["/env/HF_TOKEN"]);
    expect(nullsIn({ command: ["a", "b"], list: [1, [2, null]] })).toEqual([]);
  });

  it("keeps numbers as a program gets them", () => {
    const text = "[program.arguments]\na = 1\nb = 0.5\nc = -1.5e-3\n[optimizer]\nlr = 1.0";
    expect(readSpecText(text).spec).toEqual({
      program: { arguments: { a: 1, b: 0.5, c: -0.0015 } },
      optimizer: { lr: 1 },
    });
  });

  it("is read with a byte order mark and lines of Windows, and so is JSON", () => {
    expect(readSpecText('\uFEFFname = "a"\r\n').spec).toEqual({ name: "a" });
    expect(readSpecText("").spec).toEqual({});
    expect(readSpecText(' {"name": null}').spec).toEqual({ name: null });
    const text = '{"a": {"1.0": [-1, 0.5, 2e-3, "1.0", "\\"1", null, true]}, "lr": 1.0}';
    expect(readSpecText(text).spec).toEqual(JSON.parse(text));
    expect(readSpecText("[1").error).toContain("Line 1");
    expect(readSpecText('{"name":').error).toContain("JSON");
  });

  it.each([
    '{"a": "\\u000012", "b": "\\u0000x", "\\u00001": ["\\u0000"]}',
    '{"a": "n1", "n": "t", "t1" : {"n2"\n: "x:", "": ""}, ":": [":", -0, 7]}',
  ])("has the texts and names of %s as they are", (text) => {
    expect(readSpecText(text)).toEqual({ spec: JSON.parse(text.replace("-0", "0")), error: null });
  });

  it.each([
    ['name = "a"\n[training\nsteps = 1', /^Line 2, column \d+: /],
    ["name = 1\nname = 2", /^Line 2, column \d+: .*(redefine|key)/],
    ["[a]\nseed = 9007199254740993", /^a\.seed = 9007199254740993: .*2\^53.*trainyard submit/],
    ["x = 1\n\n[a]\nb = [\n  2024-01-02,\n]", /^a\.b\.0 is a date; write it in quotes/],
    ["[a]\nt = 12:00:00", /^a\.t is a date/],
    ["lr = nan", /^lr is nan; legal: a finite number/],
    ["[optimizer]\nlr = -inf", /^optimizer\.lr is -inf/],
    ["[program.arguments]\nscale = 1.0", /^program\.arguments\.scale would become 1: .*quotes/],
    ["[program.arguments]\na = [1, 1e3]", /^program\.arguments\.a\.1 would become 1000/],
    ['{"program": {"arguments": {"a": [1, 1.0]}}}', /^program\.arguments\.a\.1 would become 1:/],
    ['{"seed": 9007199254740993}', /^seed = 9007199254740993: .*2\^53/],
    ['{"lr": 1e400}', /^lr is inf/],
  ])("refuses %j with the place", (text, error) => {
    const read = readSpecText(text);
    expect(read.spec).toBeNull();
    expect(read.error).toMatch(error);
    expect(read.error).not.toContain("\n");
  });
});
