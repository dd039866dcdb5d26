import { expect, it } from "vitest";
import { ApiError } from "@/shared/api/errors";
import { problemsOf, readNumber } from "./problems";

const refused = (...errors: { pointer: string; detail: string }[]) =>
  new ApiError({ type: "", title: "", status: 422, detail: "all of it", request_id: "", errors });

it("puts each problem at its control, and names the fields of the others", () => {
  const error = refused(
    { pointer: "/steps", detail: "too few" },
    { pointer: "/overrides/micro_batch_size", detail: "too many" },
    { pointer: "/overrides/parallelism/tp", detail: "does not divide" },
  );
  expect(problemsOf(error)).toEqual({
    at: { steps: "too few", microBatchSize: "too many" },
    others: ["parallelism.tp: does not divide"],
  });
});

it("keeps a refusal without fields, and is empty without a refusal", () => {
  expect(problemsOf(refused())).toEqual({ at: {}, others: ["all of it"] });
  expect(problemsOf(null)).toEqual({ at: {}, others: [] });
});

it("reads every whole number, legal or not, and rejects other text", () => {
  expect(readNumber("  ")).toEqual({ value: null });
  expect(readNumber("0")).toEqual({ value: 0 });
  expect(readNumber("-1")).toEqual({ value: -1 });
  expect(readNumber("1,000,000,000,000")).toEqual({ value: 1e12 });
  expect(readNumber("1e3").problem).toContain("1e3 is no whole number");
  expect(readNumber("1.5").problem).toContain("1.5");
});
