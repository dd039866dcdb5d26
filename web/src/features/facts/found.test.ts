import { describe, expect, it } from "vitest";
import { factText } from "@/shared/format/spec";
import { foundIn } from "./found";

describe("a search for values", () => {
  const values = { "optimizer.lr": 3e-5, Name: "ResNet", wide: true };

  it("have each word in name or text", () => {
    expect(foundIn(values, "").map(([name]) => name)).toEqual(["optimizer.lr", "Name", "wide"]);
    expect(foundIn(values, "LR opt")).toEqual([["optimizer.lr", 3e-5]]);
    expect(foundIn(values, "resnet")).toEqual([["Name", "ResNet"]]);
    expect(foundIn(values, "true resnet")).toEqual([]);
  });

  it("are written as a script gave them", () => {
    expect([3e-5, 0.1, 1e21, 12345678, true, "", "a\u202eb\u0007"].map(factText)).toEqual([
      "3e-5",
      "0.1",
      "1e+21",
      "12345678",
      "true",
      '""',
      "a�b�",
    ]);
  });
});
