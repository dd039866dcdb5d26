import { expect, it } from "vitest";
import { loginFault } from "./loginFaults";

it("has a text for each code, and for unknown ones", () => {
  expect(loginFault(null)).toBeNull();
  expect(loginFault("issuer_down")).toContain("does not respond");
  for (const odd of ["toString", "<b>", ""]) expect(loginFault(odd)).toContain("The login failed");
});
