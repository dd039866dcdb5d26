import { expect, test } from "vitest";
import { defaultsOf } from "./defaults";

test("defaults are read from the schema, section by section", () => {
  const schema = {
    properties: {
      name: { type: "string", default: "job" },
      tags: { type: "array", default: [] },
      env: { type: "object", additionalProperties: { type: "string" } },
      retry: { $ref: "#/$defs/Retry", default: { max_retries: 2, on: ["hang"] } },
    },
  };
  expect([...defaultsOf(schema)]).toEqual([
    ["name", "job"],
    ["tags", "none"],
    ["env", "none"],
    ["retry.max_retries", "2"],
    ["retry.on", "hang"],
  ]);
});
