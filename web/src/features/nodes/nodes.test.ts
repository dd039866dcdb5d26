import { expect, it } from "vitest";
import type { NodeMetrics, NodeView } from "@/shared/api/types";
import { joinCommand } from "@/shared/format/shell";
import { linesOf, stretches, utilization } from "./history";
import { holdersBySlot } from "./holders";
import { isFound, problemsOf, statusOf } from "./status";

it("shows which job holds which slot", () => {
  const node = {
    hardware: { slots: 4 },
    allocations: [{ allocation: { slots: [3] } }, { allocation: { slots: [0, 1, 9] } }],
  } as unknown as NodeView;
  expect(holdersBySlot(node)).toEqual([1, 1, null, 0]);
});

it("has the command that starts a worker with a join token", () => {
  expect(joinCommand("http://host:1", "ty_join_x")).toContain(
    "TRAINYARD_JOIN_TOKEN=ty_join_x \\\n  python -m worker",
  );
});

const NODE = {
  name: "gpu-01",
  online: true,
  draining: false,
  drain: null,
  notice: null,
  free_slots: 2,
  withheld: [],
  problems: [],
  slow_slots: [],
  labels: { zone: "a", rack: "r7" },
  hardware: { slots: 4, device_name: "NVIDIA H100" },
  allocations: [{ job_name: "llama-7" }],
} as unknown as NodeView;
const DRAIN = {
  running: "finish" as const,
  by: "server",
  at: "2026-01-01T00:00:00Z",
  reasons: ["Xid 79"],
};

it.each([
  [{}, "online", false],
  [{ drain: DRAIN, draining: true }, "cordoned", true],
  [{ drain: { ...DRAIN, running: "move" }, draining: true }, "draining", true],
  [{ drain: DRAIN, draining: true, notice: "ends at 12:00" }, "draining", true],
  [{ online: false, drain: DRAIN }, "offline", true],
  [{ withheld: [{ slot: 0, reason: "held" }] }, "online", true],
  [{ problems: ["slot 0: Xid 79"] }, "online", true],
  [{ slow_slots: [{ slot: 0, jobs: 2 }] }, "online", true],
])("shows the state of a node, and whether it has problems: %j", (changes, word, care) => {
  const node = { ...NODE, ...changes } as NodeView;
  expect(statusOf(node).word).toBe(word);
  expect(problemsOf(node).length > 0).toBe(care);
});

it("lists each problem of a node once", () => {
  const found = problemsOf({
    ...NODE,
    draining: true,
    drain: { ...DRAIN, reasons: ["slot 0: Xid 79, the GPU has fallen off the bus"] },
    withheld: [{ slot: 2, reason: "process 7 holds its memory" }],
    problems: ["slot 0: Xid 79", "slot 0: Xid 7", "/srv does not answer"],
    slow_slots: [{ slot: 1, jobs: 2 }],
  });
  expect(found[0]).toMatch(/^Cordoned by server/);
  expect(found.slice(1)).toEqual([
    "slot 0: Xid 79, the GPU has fallen off the bus",
    "slot 2 is withheld: process 7 holds its memory",
    "slot 0: Xid 7",
    "/srv does not answer",
    "slot 1 slowed 2 jobs of the last 30 days",
  ]);
});

it.each([
  ["", true],
  ["GPU-01", true],
  ["zone=a h100", true],
  ["llama online", true],
  ["zone=b", false],
  ["gpu-01 zone=b", false],
])("finds a node by every word of %j: %s", (search, found) => {
  expect(isFound(NODE, search)).toBe(found);
});

const point = (minute: number, mean: number) => ({
  time: new Date(minute * 60_000).toISOString(),
  min: mean,
  mean,
  max: mean,
});
const gpu = (slot: number, ...values: number[]) => ({
  name: "gpu_utilization_ratio",
  part: `GPU-${slot}`,
  slot,
  points: values.map((value, minute) => point(minute, value)),
});
const metrics = (...curves: object[]) => ({ seconds: 60, curves }) as unknown as NodeMetrics;
const load = { name: "load", part: null, slot: null, points: [point(0, 2), point(1, 16)] };

it("shows the mean of the GPUs, or the load by cores", () => {
  const line = utilization(metrics(gpu(1, 0.2, 0.4), gpu(0, 0.6), load), 8);
  expect(line.label).toBe("GPU utilisation");
  expect(line.points[0]?.[1]).toBeCloseTo(0.4);
  expect(line.points[1]).toEqual([60, 0.4]);
  expect(utilization(metrics(load), 8).points.map(([, value]) => value)).toEqual([0.25, 1]);
});

it("has a line for each slot, in their order, and leaves gaps without samples", () => {
  const lines = linesOf(metrics(gpu(1, 0.2), gpu(0, 0.6), load), "gpu_utilization_ratio");
  expect(lines.map(({ label, place }) => [label, place])).toEqual([
    ["slot 0", 0],
    ["slot 1", 1],
  ]);
  expect(linesOf(metrics(load), "load")[0]?.label).toBe("host");
  const points = [0, 60, 120, 600, 660].map((at) => [at, 1] as const);
  expect(stretches(points, 60).map((stretch) => stretch.length)).toEqual([3, 2]);
});
