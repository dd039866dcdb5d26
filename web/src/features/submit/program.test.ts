import { describe, expect, it } from "vitest";
import { type JsonObject, sparseSpec } from "@/shared/format/document";
import { COMMAS, joinWords, splitWords } from "@/shared/format/shell";
import { OF_THE_TRAINER } from "@/shared/format/spec";
import document from "../../../../tests/library/spec/job.schema.json";
import { submitCommand } from "./commandLine";
import { draftProblems } from "./draftProblems";
import { rowsOf, tableOf } from "./form/pairs";
import { otherKind } from "./kind";
import { layoutsBySize } from "./plan/layoutsBySize";
import { formOf, type Pairs, pointerOf, sectionsFor, shownNames, trainerPointers } from "./schema";
import { inOrder, withField } from "./spec";

const all = formOf(document);
const ofTrainer = trainerPointers(document);
const ofProgram = sectionsFor(all, ofTrainer, true);
const fields = all.flatMap((section) => section.fields);
const problemsOf = (spec: JsonObject, hidden: string[] = []) =>
  draftProblems(spec, ofProgram, hidden).map(({ pointer, detail }) => `${pointer} ${detail}`);

describe("a program in the form", () => {
  it("has every field of its sections, and none of the trainer", () => {
    const names = ofProgram.map(({ name }) => name);
    expect(names).toEqual([
      ...["", "program", "program.code", "program.environment"],
      ...["checkpoint", "resources", "retry", "guard"],
    ]);
    const own = ofProgram.slice(1, 4).flatMap((section) => section.fields.map((f) => f.name));
    const { ProgramSection, CodeSection, EnvironmentSection } = document.$defs;
    const schemas = [ProgramSection, CodeSection, EnvironmentSection];
    const expected = schemas.flatMap(({ properties }) => Object.keys(properties));
    expect(own).toEqual(expected.filter((name) => !["code", "environment"].includes(name)));
    const saved = ofProgram.find(({ name }) => name === "checkpoint")?.fields.map((f) => f.name);
    expect(saved).toContain("keep_latest_k");
    expect(saved).not.toContain("interval_steps");
    const trainer = sectionsFor(all, ofTrainer, false);
    expect(trainer.some((section) => pointerOf(section).startsWith("/program"))).toBe(false);
  });

  it("has the trainer's sections that a job's page omits", () => {
    const sections = ofTrainer.filter((pointer) => pointer.split("/").length === 2);
    expect(sections).toEqual([...OF_THE_TRAINER].map((name) => `/${name}`));
  });

  it("keeps typed values when the kind changes, in both directions", () => {
    const trainer = {
      name: "a",
      model: { size: "8B" },
      checkpoint: { interval_steps: 5, keep_latest_k: 2 },
    };
    const first = otherKind({ spec: trainer, parked: {} }, ofTrainer);
    expect(first.spec).toEqual({
      name: "a",
      checkpoint: { keep_latest_k: 2 },
      program: { command: [] },
    });
    const program = { ...first.spec, name: "b", program: { command: ["x.py"], steps: 3 } };
    const second = otherKind({ ...first, spec: program }, ofTrainer);
    expect(second.spec).toEqual({ ...trainer, name: "b" });
    expect(otherKind(second, ofTrainer).spec).toEqual(program);
  });

  it("stays a program after any reset in it", () => {
    const field = (pointer: string) => fields.find((each) => each.pointer === pointer) as never;
    const spec = { program: { command: ["x.py"] } };
    expect(withField(spec, field("/program/command"), [])).toEqual({ program: { command: [] } });
    const odd = { program: { launcher: "command" } };
    expect(withField(odd, field("/program/launcher"), "torchrun")).toEqual({ program: {} });
  });

  it("is written in the order of the schema", () => {
    const spec = {
      odd: 1,
      env: { B: "1", A: "2" },
      resources: { world_size: 2 },
      program: { code: { folder: "data:x" }, arguments: { z: 1, a: 2 }, command: ["x"] },
      name: "n",
    };
    const written = inOrder(spec, all);
    expect(written).toEqual(spec);
    expect(Object.keys(written)).toEqual(["name", "env", "program", "resources", "odd"]);
    expect(Object.keys(written.program as JsonObject)).toEqual(["command", "arguments", "code"]);
    expect(Object.keys(written.env as JsonObject)).toEqual(["B", "A"]);
  });
});

describe("the words of a command", () => {
  it.each([
    ["train.py  --x=1,2 ", ["train.py", "--x=1,2"]],
    [`a 'b c' "d 'e' \\" f" g\\ h ''`, ["a", "b c", `d 'e' " f`, "g h", ""]],
    [`--name='it'\\''s' "\\n"`, ["--name=it's", "\\n"]],
    ["", []],
  ])("are read from %j", (line, words) => expect(splitWords(line)).toEqual(words));

  it.each([
    ["a 'b", { open: "'" }],
    [`a "b\\"`, { open: '"' }],
    ["a\\", { open: "\\" }],
  ])("are none in %j", (line, open) => expect(splitWords(line)).toEqual(open));

  it("are a problem if absent", () => {
    const [problem] = problemsOf({ program: { command: [] } });
    expect(problem).toBe("/program/command Enter the command to run, such as train.py.");
  });

  it("survive a round trip", () => {
    const words = [
      "a",
      "",
      "b c",
      "it's",
      'd"e',
      "\\",
      "x,y",
      "--z=*",
      "tab\there",
      "{checkpoint}",
    ];
    expect(splitWords(joinWords(words))).toEqual(words);
    expect(splitWords(joinWords(words, COMMAS), COMMAS)).toEqual(words);
    expect(joinWords(["a", "b"], COMMAS)).toBe("a, b");
  });

  it("are a problem of their field while a quote is open", () => {
    expect(problemsOf({ program: { command: "x.py 'a" } })).toEqual([
      "/program/command The quote ' is not closed.",
    ]);
  });
});

describe("names and values", () => {
  const env: Pairs = { names: ["NCCL_DEBUG"], isText: true, isMasked: true };
  const scalars: Pairs = { names: [], isText: false, isMasked: false };

  it("come from the schema", () => {
    expect(fields.find(({ pointer }) => pointer === "/env")?.control).toMatchObject({
      isText: true,
      isMasked: true,
    });
    expect(shownNames(all).has("NCCL_DEBUG")).toBe(true);
    const values = fields.find(({ pointer }) => pointer === "/program/arguments")?.control;
    expect(values).toEqual({ kind: "pairs", ...scalars });
  });

  it("are text in env, and typed in arguments", () => {
    const rows = [
      ["a", "1"],
      ["b", "true"],
      ["c", "[1, 2]"],
      ["d", '"1"'],
      ["e", "x y"],
    ] as const;
    const typed = { a: 1, b: true, c: [1, 2], d: "1", e: "x y" };
    expect(tableOf(rows, scalars)).toEqual(typed);
    expect(tableOf(rowsOf(typed, scalars), scalars)).toEqual(typed);
    expect(tableOf(rows, env)).toEqual({ a: "1", b: "true", c: "[1, 2]", d: '"1"', e: "x y" });
  });

  it("are references to secrets in env, if they are such JSON", () => {
    const spec = { HF: { secret: "hf" }, OWN: { secret: "own", of: "owner", version: 2 } };
    expect(tableOf(rowsOf(spec, env), env)).toEqual(spec);
    const others = [
      ["A", '{"secret": 1}'],
      ["B", '{"secret"'],
      ["C", "{}"],
    ] as const;
    expect(tableOf(others, env)).toEqual(Object.fromEntries(others));
  });

  it("reach a program as typed, even if a number would change", () => {
    const rows = [
      ["a", "1.0"],
      ["b", "9007199254740993"],
      ["c", "null"],
      ["d", "{}"],
    ] as const;
    expect(tableOf(rows, scalars)).toEqual(Object.fromEntries(rows));
  });

  it("keep an incomplete row, which is a problem", () => {
    const twice = [
      ["A", "1"],
      ["A", "2"],
    ] as const;
    expect(tableOf([...twice, ["", ""]], env)).toEqual(twice);
    expect(rowsOf(tableOf(twice, env), env)).toEqual(twice);
    expect(problemsOf({ env: tableOf(twice, env) })).toEqual(["/env A is given twice."]);
    expect(problemsOf({ env: tableOf([["", "x"]], env) })).toEqual(["/env A value has no name."]);
    expect(problemsOf({ env: { A: "1" } })).toEqual([]);
  });
});

describe("the layouts of a plan", () => {
  it("are grouped by number of slots, in order of preference", () => {
    const listed = [
      [4, "FSDP 4"],
      [2, "FSDP 2"],
      [4, "TP 4"],
    ].map(([world_size, name]) => ({ world_size, name })) as never;
    expect(layoutsBySize(listed)).toEqual([
      [2, ["FSDP 2"]],
      [4, ["FSDP 4", "TP 4"]],
    ]);
  });
});

describe("a copy of another job", () => {
  const whole = {
    name: "old",
    env: { NCCL_DEBUG: "INFO", HF_TOKEN: "********" },
    program: {
      command: ["x.py", "--db=https://********@host/x"],
      arguments: { seed: 2 ** 60, url: "s3://********@bucket", lr: 0.1 },
    },
  };
  const set = ["name", "env.NCCL_DEBUG", "env.HF_TOKEN", "program.command", "program.arguments"];

  it("has no masked value, nor a number that a browser cannot represent", () => {
    expect(sparseSpec(whole, set)).toEqual({
      spec: {
        name: "old",
        env: { NCCL_DEBUG: "INFO" },
        program: { arguments: { lr: 0.1 } },
      },
      hidden: [
        "/env/HF_TOKEN",
        "/program/command",
        "/program/arguments/seed",
        "/program/arguments/url",
      ],
    });
  });

  it("has no list with a masked part", () => {
    const layouts = (uri: string) => [{ tp: 2, arguments: { uri } }];
    const copy = (uri: string) =>
      sparseSpec({ program: { layouts: layouts(uri) } }, ["program.layouts"]);
    expect(copy("s3://bucket").spec).toEqual({ program: { layouts: layouts("s3://bucket") } });
    expect(copy("s3://********@bucket")).toEqual({ spec: {}, hidden: ["/program/layouts"] });
  });

  it("names the values to enter again, until they are set or removed", () => {
    const hidden = ["/env/HF_TOKEN"];
    const [problem] = problemsOf({ env: { HF_TOKEN: null } }, hidden);
    expect(problem).toBe(
      "/env/HF_TOKEN The value of env.HF_TOKEN is not shown here. Enter it again, or remove it.",
    );
    const rows = [
      ["HF_TOKEN", null],
      ["", "x"],
    ];
    expect(problemsOf({ env: rows }, hidden)).toEqual([problem, "/env A value has no name."]);
    expect(problemsOf({ env: { HF_TOKEN: "new" } }, hidden)).toEqual([]);
    expect(problemsOf({}, hidden)).toEqual([]);
  });
});

describe("what a browser cannot do", () => {
  it("is named: the command line packs files", () => {
    const [problem] = problemsOf({ program: { command: ["x"], code: { local: "." } } });
    expect(problem).toContain("/program/code/local local names files of your machine");
    expect(problem).toContain("trainyard submit job.toml");
  });

  it("takes secrets of the command line from variables of the shell", () => {
    const spec = {
      program: { command: ["x.py", "a b"] },
      env: { HF_TOKEN: "hf_1", NCCL_DEBUG: "WARN" },
    };
    expect(submitCommand(spec, shownNames(all))).toBe(
      [
        "trainyard submit",
        `--set 'program.command=["x.py","a b"]'`,
        `--set "env.HF_TOKEN=$HF_TOKEN"`,
        "--set env.NCCL_DEBUG=WARN",
      ].join(" \\\n  "),
    );
    const odd = { env: { "A$(id)": "x" } };
    expect(submitCommand(odd, shownNames(all))).toBe("trainyard submit job.toml");
  });

  it("quotes a value that --set would change, and uses a file for a dotted name", () => {
    const program = (value: JsonObject) => ({ program: { arguments: value } });
    expect(submitCommand(program({ a: "1", b: 1 }), new Set())).toBe(
      `trainyard submit --set 'program.arguments.a="1"' --set program.arguments.b=1`,
    );
    expect(submitCommand(program({ "a.b": 1 }), new Set())).toBe("trainyard submit job.toml");
  });
});
