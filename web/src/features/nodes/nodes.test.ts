import { expect, it } from "vitest";
import type { NodeView } from "@/shared/api/types";
import { joinCommand } from "@/shared/format/shell";
import { holdersBySlot } from "./holders";

it("shows which job holds which slot", () => {
  const node = {
    hardware: { slots: 4 },
    allocations: [{ allocation: { slots: [3] } }, { allocation: { slots: [0, 1, 9] } }],
  } as unknown as NodeView;
  expect(holdersBySlot(node)).toEqual([1, 1, null, 0]);
});

it("has the command that starts a worker with a join token", () => {
  expect(joinCommand("http://host:1", "ty_join_x")).toContain(
    "TRAINYARD_JOIN_TOKEN=ty_join_x \\\n  python -m worker",
  );
});
