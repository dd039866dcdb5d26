import type { NodeView } from "@/shared/api/types";

/** Return the index of the holding allocation for each slot of a node; null if free. */
export function holdersBySlot(node: NodeView): (number | null)[] {
  const holders = new Array<number | null>(node.hardware.slots).fill(null);
  node.allocations.forEach(({ allocation }, index) => {
    for (const slot of allocation.slots) if (slot in holders) holders[slot] = index;
  });
  return holders;
}
