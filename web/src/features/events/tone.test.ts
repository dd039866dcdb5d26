import { expect, it } from "vitest";
import type { EventView } from "@/shared/api/types";
import { toneOf } from "./tone";

const ended = (state: string, ok: boolean | null) =>
  toneOf({ kind: "operation_ended", data: { state, ok } } as EventView);

it("an ended operation has the colour of its state and of its findings", () => {
  expect(ended("failed", null)).toBe("bad");
  expect(ended("cancelled", null)).toBe("neutral");
  expect(ended("succeeded", null)).toBe("ok");
  expect(ended("succeeded", true)).toBe("ok");
  expect(ended("succeeded", false)).toBe("warn");
});
