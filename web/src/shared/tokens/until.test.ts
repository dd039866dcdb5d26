import { expect, it } from "vitest";
import { until } from "./until";

const NOW = "2026-01-01T00:00:00Z";

it.each([
  [null, "never"],
  ["2025-12-31T23:59:59Z", "over"],
  ["2026-01-01T00:00:02Z", "in 5 s"],
  ["2026-01-07T00:00:00Z", "in 6 d"],
])("a token that ends at %s ends %s", (at, text) => expect(until(at, NOW)).toBe(text));
