import { describe, expect, it } from "vitest";
import type { Project, RankedLayout } from "@/shared/api/types";
import { type JsonObject, sparseSpec, valueAt, withValue } from "@/shared/format/document";
// The server's schema: a generated file; a test checks that it is current.
import document from "../../../../tests/library/spec/job.schema.json";
import { submitCommand } from "./commandLine";
import { COMMON, isCommon } from "./form/common";
import { placeProblems, problemsIn } from "./problems";
import { type FormField, formOf } from "./schema";
import { homeProject, numberTyped, projectOf, withField, withLayout } from "./spec";

const sections = formOf(document);
const fields = sections.flatMap((section) => section.fields);

function field(pointer: string): FormField {
  const found = fields.find((each) => each.pointer === pointer);
  if (!found) throw new Error(`no field ${pointer}`);
  return found;
}

describe("a ranked layout", () => {
  it("is set without the choices for other sizes", () => {
    const parallelism = { tp: 8, async_tp: true, dp_shard: 1, cp_method: "ulysses" };
    const option = {
      layout: { dp_replicate: 2, dp_shard: 4, cp: 1, tp: 1, pp: 1 },
      batch: { micro_batch_size: 1 },
      resets: ["async_tp"],
    } as unknown as RankedLayout;
    expect(withLayout({ parallelism }, option, 2)).toEqual({
      parallelism: { dp_replicate: 2, cp_method: "ulysses" },
      training: { micro_batch_size: 1 },
    });
  });
});

describe("the project", () => {
  const of = (name: string, role: Project["role"]) => ({ name, role }) as Project;

  it("of a new job is the default one, or one in which the person may submit", () => {
    const vision = [of("speech", "viewer"), of("vision", "member")];
    expect(homeProject([of("default", "member"), ...vision])).toBe("default");
    expect(homeProject([of("default", "viewer"), ...vision])).toBe("vision");
    expect(homeProject([of("speech", "viewer")])).toBe("default");
  });

  it("of a spec without one is the default one", () => {
    expect(projectOf({ project: "vision" })).toBe("vision");
    expect(projectOf({})).toBe("default");
    expect(projectOf({ project: null })).toBe("default");
  });
});

describe("the form", () => {
  it("has every section and field of the schema, in their order", () => {
    const { properties, $defs } = document;
    const own = sections[0]?.fields.map((each) => each.name) ?? [];
    const names = sections.slice(1).map((section) => section.name.replace(/\..*/, ""));
    expect([...new Set([...own, ...names])].sort()).toEqual(Object.keys(properties).sort());
    const training = sections.find((section) => section.name === "training");
    expect(training?.fields.map((each) => each.name)).toEqual(
      Object.keys($defs.TrainingSection.properties),
    );
  });

  it("has help for every field, and a control other than raw JSON except for lists of lists and tables", () => {
    expect(fields.filter((each) => each.help === "")).toEqual([]);
    const raw = fields.filter((each) => each.control.kind === "json");
    expect(raw.map((each) => each.pointer)).toEqual([
      "/program/layouts",
      "/parallelism/pp_stage_modules",
    ]);
  });

  it.each([
    ["/training/steps", { kind: "number" }, "steps", 100, false],
    ["/training/max_grad_norm", { kind: "number" }, null, 1, true],
    ["/data/max_tokens", { kind: "number" }, "tokens", null, true],
    ["/checkpoint/preflight", { kind: "switch" }, null, true, false],
    ["/data/corpus", { kind: "choice", options: ["python-stdlib"] }, null, "python-stdlib", false],
    ["/compile/enabled", { kind: "choice", options: ["auto", true, false] }, null, "auto", false],
    [
      "/training/log_every_steps",
      { kind: "word-or-number", suggestions: ["auto"] },
      "steps",
      "auto",
      false,
    ],
    ["/tags", { kind: "words" }, null, [], false],
    ["/env", { kind: "pairs" }, null, {}, false],
    [
      "/checkpoint/writers",
      { kind: "word-or-number", suggestions: ["auto", "all", "one_replica"] },
      "ranks",
      "auto",
      false,
    ],
  ] as const)("draws %s", (pointer, control, unit, byDefault, isNullable) => {
    expect(field(pointer)).toMatchObject({ control, unit, default: byDefault, isNullable });
  });

  it("offers the reasons of a failure as choices, through a reference", () => {
    expect(field("/retry/on").control).toMatchObject({ kind: "choices" });
  });

  it("opens with fields that exist", () => {
    const known = new Set(fields.map((each) => each.pointer));
    expect([...COMMON].filter((pointer) => !known.has(pointer))).toEqual([]);
  });

  it("opens with the parallel axes and the world size, and no other field of their sections", () => {
    const common = fields.filter(isCommon).map((each) => each.pointer);
    expect(common.filter((pointer) => pointer.startsWith("/parallelism/"))).toEqual(
      ["dp_replicate", "dp_shard", "cp", "tp", "pp"].map((axis) => `/parallelism/${axis}`),
    );
    expect(common).toContain("/resources/world_size");
    expect(common).not.toContain("/checkpoint/writers");
  });
});

describe("the draft", () => {
  it("holds only values that differ from the defaults", () => {
    const steps = field("/training/steps");
    const set = withField({}, steps, 200);
    expect(set).toEqual({ training: { steps: 200 } });
    expect(withField(set, steps, 100)).toEqual({});
  });

  it("keeps an absence that is not the default", () => {
    expect(withField({}, field("/training/max_grad_norm"), null)).toEqual({
      training: { max_grad_norm: null },
    });
  });

  it("does not modify the previous draft", () => {
    const before: JsonObject = { model: { dim: 8 } };
    expect(withValue(before, "/model/size", "8B")).toEqual({ model: { dim: 8, size: "8B" } });
    expect(before).toEqual({ model: { dim: 8 } });
  });

  it("follows escaped pointers, and has no value below a non-section", () => {
    expect(valueAt({ "a/b": { "c~d": 1 } }, "/a~1b/c~0d")).toBe(1);
    expect(valueAt({ model: 7 }, "/model/size")).toBeUndefined();
  });

  it("copies another job's spec without defaults and masked secrets", () => {
    const whole = {
      name: "old",
      training: { steps: 100, seq_len: 64 },
      env: { NCCL_DEBUG: "INFO", HF_TOKEN: "********" },
    };
    const set = ["name", "training.seq_len", "env.NCCL_DEBUG", "env.HF_TOKEN"];
    expect(sparseSpec(whole, set).spec).toEqual({
      name: "old",
      training: { seq_len: 64 },
      env: { NCCL_DEBUG: "INFO" },
    });
  });

  it.each([
    ["1e4", 10_000],
    ["1_000", 1_000],
    [" 3 ", 3],
    [".5", 0.5],
    ["1e", "1e"],
    ["many", "many"],
    ["0x10", "0x10"],
    ["9223372036854775807", "9223372036854775807"],
  ])("reads %s as %s", (text, value) => expect(numberTyped(text)).toBe(value));
});

describe("the command line", () => {
  const NONE = new Set<string>();

  it("sets each value, in TOML, quoted for a shell", () => {
    const spec: JsonObject = {
      name: "a",
      tags: ["x", "y z"],
      compile: { enabled: true },
      env: { NCCL_DEBUG: "", NOTE: "it's" },
    };
    expect(submitCommand(spec, new Set(["NCCL_DEBUG", "NOTE"]))).toBe(
      [
        "trainyard submit",
        "--set name=a",
        `--set 'tags=["x","y z"]'`,
        "--set compile.enabled=true",
        `--set 'env.NCCL_DEBUG=""'`,
        `--set 'env.NOTE=it'\\''s'`,
      ].join(" \\\n  "),
    );
    expect(submitCommand({}, NONE)).toBe("trainyard submit --set name=job");
    expect(submitCommand({ name: "b" }, NONE)).toBe("trainyard submit --set name=b");
  });

  it("names a file if settings cannot express the spec", () => {
    expect(submitCommand({ training: { max_grad_norm: null } }, NONE)).toBe(
      "trainyard submit job.json",
    );
    expect(submitCommand({ name: "b", training: { steps: 1, x: [null] } }, NONE)).toBe(
      "trainyard submit job.json",
    );
  });
});

describe("problems", () => {
  const placed = placeProblems(
    [
      { pointer: "/training/steps", detail: "too few" },
      { pointer: "/training/steps", detail: "odd" },
      { pointer: "/retry/on/0", detail: "no reason" },
      { pointer: "/parallelism", detail: "axes do not multiply" },
      { pointer: "/env/A B", detail: "no name" },
      { pointer: "", detail: "no object" },
      { pointer: "/model/sise", detail: "unknown field" },
      { pointer: "/modle", detail: "unknown field" },
    ],
    sections,
  );

  it("are placed at their field, or at its parent field", () => {
    expect(placed.byField.get("/training/steps")).toEqual(["too few", "odd"]);
    expect(placed.byField.get("/retry/on")).toEqual(["no reason"]);
    expect(placed.byField.get("/env")).toEqual(["no name"]);
  });

  it("are placed at their section, or above the form, without a field", () => {
    expect(placed.bySection.get("parallelism")).toEqual(["axes do not multiply"]);
    expect(placed.bySection.get("model")).toEqual(["unknown field"]);
    expect(placed.elsewhere.map((problem) => problem.pointer)).toEqual(["", "/modle"]);
  });

  it("are counted by section", () => {
    const counts = sections.map((section) => [section.name, problemsIn(section, placed)] as const);
    expect(counts.filter(([, found]) => found > 0)).toEqual([
      ["", 1],
      ["model", 1],
      ["training", 2],
      ["parallelism", 1],
      ["retry", 1],
    ]);
  });
});
