import { expect, it } from "vitest";
import { type Failure, reasonWords, remedyOf } from "./failures";

const failure = (reason: string, message = "") => ({ reason, message }) as unknown as Failure;

it("names the value that is not finite", () => {
  const reason = "non_finite_loss";
  expect(reasonWords(failure(reason, "train/grad_norm is inf at step 7"))).toBe(
    "grad norm not finite",
  );
  expect(reasonWords(failure(reason, "train/loss is nan at step 7"))).toBe("loss not finite");
  expect(reasonWords(failure("out_of_memory"))).toBe("out of memory");
});

it("leads to a new job where a resume cannot change the field", () => {
  expect(remedyOf(failure("loss_spike")).field).toBe("guard.loss_spike");
  expect(remedyOf(failure("data_error")).field).toBe("data.");
  expect(remedyOf(failure("out_of_memory")).field).toBeUndefined();
});
