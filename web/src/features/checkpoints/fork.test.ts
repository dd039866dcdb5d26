import { expect, test } from "vitest";
import { ApiError } from "@/shared/api/errors";
import { firstChoice, forkProblems, forkRequest, forkWords } from "./fork";

test("settings are JSON if they parse as JSON, and are grouped by section", () => {
  const settings = "training.steps=800\n training.seed = 7\n\ndata.path=data:a=b\noptimizer.lr=";
  const choice = { name: " longer ", settings, parts: "model" } as const;
  expect(forkRequest(choice)).toEqual({
    name: "longer",
    parts: ["model"],
    changes: {
      training: { steps: 800, seed: 7 },
      data: { path: "data:a=b" },
      optimizer: { lr: null },
    },
  });
  expect(forkWords(choice).slice(0, 2)).toEqual(["--set", "training.steps=800"]);
  expect(forkWords(choice).slice(-4)).toEqual(["--parts", "model", "--name", "longer"]);
});

test("unchanged values are omitted", () => {
  expect(forkRequest({ name: "", settings: "", parts: "all" })).toEqual({ changes: {} });
  expect(forkWords({ name: "", settings: "", parts: "all" })).toEqual([]);
});

test("a fork of the last step gets more steps, because it cannot continue without them", () => {
  expect(firstChoice({ step: 40, steps: 40, setting: null }).settings).toBe("training.steps=80");
  expect(firstChoice({ step: 20, steps: 40, setting: null }).settings).toBe("");
  const lower = "optimizer.lr=0.1";
  expect(firstChoice({ step: 20, steps: 40, setting: lower }).settings).toBe(lower);
});

test("a problem names the field as typed, not its place in the request", () => {
  const errors = [
    { pointer: "/changes/training/steps", detail: "steps=1 is less" },
    { pointer: "/name", detail: "'a b' is no name" },
  ];
  const problem = { type: "", title: "Not valid", status: 422, detail: "", errors, request_id: "" };
  expect(forkProblems(new ApiError(problem))).toEqual([
    "training.steps: steps=1 is less",
    "name: 'a b' is no name",
  ]);
  expect(forkProblems(new Error("away"))).toEqual(["away"]);
});
