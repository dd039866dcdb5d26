import { describe, expect, test } from "vitest";
import { differences, effectiveSpec, fieldsOf, type Overrides, type Spec } from "./differences";

const spec = {
  name: "tiny",
  tags: ["a", "b"],
  training: { steps: 100, micro_batch_size: 4 },
  parallelism: { dp_replicate: 1, dp_shard: -1 },
  resources: { world_size: 2, nodes: null },
  env: {},
} as unknown as Spec;

const none: Overrides = {
  parallelism: null,
  cpu_offload: null,
  micro_batch_size: null,
  activation_checkpoint: null,
  compile: null,
  checkpoint: null,
  resources: null,
  retry: null,
  steps: null,
};

describe("spec", () => {
  test("is flat in the order of its sections, lists in one piece", () => {
    expect(fieldsOf(spec)).toEqual([
      ["name", "tiny"],
      ["tags", "a, b"],
      ["training.steps", "100"],
      ["training.micro_batch_size", "4"],
      ["parallelism.dp_replicate", "1"],
      ["parallelism.dp_shard", "-1"],
      ["resources.world_size", "2"],
      ["resources.nodes", "–"],
      ["env", "none"],
    ]);
  });

  test("an attempt without overrides ran what was submitted", () => {
    expect(differences(spec, effectiveSpec(spec, none))).toEqual([]);
  });

  test("overrides replace sections and single numbers", () => {
    const overrides = {
      ...none,
      micro_batch_size: 2,
      resources: { world_size: 4, nodes: null },
    } as unknown as Overrides;
    expect(differences(spec, effectiveSpec(spec, overrides))).toEqual([
      { field: "training.micro_batch_size", before: "4", after: "2" },
      { field: "resources.world_size", before: "2", after: "4" },
    ]);
  });

  test("a field that only one side has is a difference", () => {
    expect(differences({ env: {} }, { env: { A: "1" } })).toEqual([
      { field: "env", before: "none", after: "–" },
      { field: "env.A", before: "–", after: "1" },
    ]);
  });
});
