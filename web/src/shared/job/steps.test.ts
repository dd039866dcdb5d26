import { describe, expect, it } from "vitest";
import { lastStep, reachedStep } from "./steps";

describe("the step of a job", () => {
  it("is absent where a program has reported none", () => {
    expect(reachedStep({ step: 0, steps: null }, "running")).toBe("–");
    expect(reachedStep({ step: 0, steps: 1000 }, "succeeded")).toBe("–");
  });

  it("is a number as soon as there is one, and of each job with a number of steps", () => {
    expect(reachedStep({ step: 7, steps: null }, "succeeded")).toBe("7");
    expect(reachedStep({ step: 0, steps: 1000 }, "running")).toBe("0");
  });
});

describe("the step of an attempt", () => {
  it("is absent where a program has reported none", () => {
    const attempt = { start_step: 0, last_step: 0, micro_batch_size: null };
    expect(lastStep(attempt)).toBe("–");
    expect(lastStep({ ...attempt, start_step: 40 })).toBe("40");
    expect(lastStep({ ...attempt, micro_batch_size: 2 })).toBe("0");
  });
});
