import { expect, it } from "vitest";
import type { Failure } from "@/shared/api/types";
import { reasonWords, resumeLabel } from "./failures";

const failure = (fields: Partial<Failure>) => fields as Failure;

it("names the value that is not finite", () => {
  const reason = "non_finite_loss";
  expect(reasonWords(failure({ reason, metric: "train/grad_norm" }))).toBe("grad norm not finite");
  expect(reasonWords(failure({ reason, metric: "train/loss" }))).toBe("loss not finite");
  expect(reasonWords(failure({ reason, metric: null }))).toBe("a value not finite");
  expect(reasonWords(failure({ reason: "out_of_memory" }))).toBe("out of memory");
});

it("names the change with which a resume begins", () => {
  const remedy = (resume: Failure["remedy"]["resume"]) =>
    resumeLabel(failure({ remedy: { text: "", resume, field: null } }));
  expect(remedy("memory")).toBe("Resume with less memory per slot…");
  expect(remedy(null)).toBe("Resume…");
});
