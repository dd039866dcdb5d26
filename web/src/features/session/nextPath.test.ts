import { expect, it } from "vitest";
import { nextPath } from "./nextPath";

it.each([
  ["/jobs/x?tab=logs", "/jobs/x?tab=logs"],
  [null, "/jobs"],
  ["https://evil.example", "/jobs"],
  ["//evil.example", "/jobs"],
  ["/\\evil.example", "/jobs"],
])("goes from %s to %s after the login", (asked, path) => expect(nextPath(asked)).toBe(path));
