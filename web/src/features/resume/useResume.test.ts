import { describe, expect, test } from "vitest";
import type { Job, ResumeOptions } from "@/shared/api/types";
import { rowsOf } from "./layouts";
import { requestOf, resumeCommand } from "./useResume";

/** Only the server defines the axes: `ep` represents a new one. */
const axes = (dp_replicate: number, dp_shard: number) => ({ dp_replicate, dp_shard, ep: 1 });

const layout = (dp_replicate: number, dp_shard: number, fits: boolean | null = true) => ({
  layout: axes(dp_replicate, dp_shard),
  name: `${dp_replicate}x${dp_shard}`,
  batch: { micro_batch_size: 4 },
  fits,
});

const size = (world_size: number, layouts: object[], free_now = true, more = 0) => ({
  world_size,
  free_now,
  layouts,
  more,
  reason: layouts.length === 0 ? "no micro-batch size is legal" : null,
});

const options = {
  checkpoint_id: "j.a1.step-40",
  step: 40,
  options: [
    size(1, [layout(1, 1, false)]),
    size(2, [layout(1, 2, false), layout(2, 1, false)]),
    size(3, []),
    size(4, [layout(1, 4), layout(2, 2)], false, 3),
  ],
} as unknown as ResumeOptions;

const job = {
  id: "j",
  world_size: 2,
  effective_spec: { parallelism: { ...axes(1, -1), cp_method: "ulysses" } },
} as unknown as Job;

const rows = rowsOf(options, "1x2");
const row = (key: string) => {
  const found = rows.find((one) => one.key.startsWith(key));
  if (!found) throw new Error(key);
  return found;
};
const plain = { checkpointId: null, microBatchSize: null, steps: null, allowCodeChange: false };

describe("the request of a choice", () => {
  test("names no axes if the server selects them itself", () => {
    expect(requestOf(job, { ...plain, row: row("4/1x4") })).toEqual({
      world_size: 4,
      overrides: {},
    });
    expect(requestOf(job, { ...plain, row: row("2/1x2") })).toEqual({
      world_size: 2,
      overrides: {},
    });
    expect(resumeCommand("tiny", job, { ...plain, row: row("4/1x4") })).toBe(
      "trainyard resume tiny --world-size 4",
    );
  });

  test("names another layout with the whole section, so that its other fields stay", () => {
    const request = requestOf(job, { ...plain, row: row("4/2x2") });
    expect(request.overrides?.parallelism).toEqual({ cp_method: "ulysses", ...axes(2, 2) });
    expect(requestOf(job, { ...plain, row: row("2/2x1") }).overrides?.parallelism).toMatchObject(
      axes(2, 1),
    );
  });

  test("carries checkpoint, micro-batch size and steps, and the command is equivalent", () => {
    const choice = {
      row: row("4/2x2"),
      checkpointId: "j.a1.step-20",
      microBatchSize: 2,
      steps: 90,
      allowCodeChange: true,
    };
    expect(requestOf(job, choice)).toMatchObject({
      checkpoint_id: "j.a1.step-20",
      world_size: 4,
      overrides: { micro_batch_size: 2 },
      steps: 90,
      allow_code_change: true,
    });
    expect(resumeCommand("tiny", job, choice)).toBe(
      "trainyard resume tiny@a1.step-20 --world-size 4 --steps 90" +
        " --set parallelism.dp_replicate=2 --set parallelism.dp_shard=2" +
        " --set training.micro_batch_size=2 --allow-code-change",
    );
  });

  test("names a layout of a program by its axes, and none for a program without layouts", () => {
    const program = (layouts: object[]) => {
      const effective_spec = { ...job.effective_spec, program: { layouts } };
      return { ...job, effective_spec } as unknown as Job;
    };
    const choice = { ...plain, row: row("4/2x2") };
    const listed = program([axes(2, 2)]);
    expect(requestOf(listed, choice).overrides?.parallelism).toMatchObject(axes(2, 2));
    expect(resumeCommand("tiny", listed, choice)).toContain("--set parallelism.dp_shard=2");
    expect(requestOf(program([]), choice).overrides).toEqual({});
  });

  test("before the first attempt, any layout except the spec's own is named", () => {
    const first = rowsOf(options, null);
    const choose = (key: string) => {
      const found = first.find((one) => one.key.startsWith(key));
      if (!found) throw new Error(key);
      return { ...plain, row: found };
    };
    expect(requestOf(job, choose("4/1x4")).overrides).toEqual({});
    expect(requestOf(job, choose("2/1x2")).overrides?.parallelism).toMatchObject(axes(1, 2));
  });
});
