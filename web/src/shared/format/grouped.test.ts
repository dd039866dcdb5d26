import { expect, test } from "vitest";
import { grouped } from "./grouped";

test("long numbers and steps have separators, other text is unchanged", () => {
  expect(grouped("12345")).toBe("12,345");
  expect(grouped("step 6000")).toBe("step 6,000");
  for (const text of ["1337", "step 600", "step 6000 of 9000", "0.00027", "FSDP 2"]) {
    expect(grouped(text)).toBe(text);
  }
});
