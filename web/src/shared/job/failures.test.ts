import { expect, it } from "vitest";
import type { Failure, NextAction } from "@/shared/api/types";
import { actionLabel, reasonWords } from "./failures";

const failure = (fields: Partial<Failure>) => fields as Failure;

it("names the non-finite value", () => {
  const reason = "non_finite_loss";
  expect(reasonWords(failure({ reason, metric: "train/grad_norm" }))).toBe(
    "grad norm NaN or infinite",
  );
  expect(reasonWords(failure({ reason, metric: "train/loss" }))).toBe("loss NaN or infinite");
  expect(reasonWords(failure({ reason, metric: null }))).toBe("a value NaN or infinite");
  expect(reasonWords(failure({ reason: "out_of_memory" }))).toBe("out of memory");
});

it("names the action that helps", () => {
  const label = (fields: Partial<NextAction>) => actionLabel(fields as NextAction);
  expect(label({ verb: "resume", aim: "memory" })).toBe("Resume with less memory per slot…");
  expect(label({ verb: "resume", aim: null })).toBe("Resume…");
  expect(label({ verb: "submit" })).toBe("New job with changes");
  const fork = label({ verb: "fork", step: 1200, field: "optimizer.lr" });
  expect(fork).toBe("Fork step 1,200 with another optimizer.lr…");
});
