import type { NodeView } from "@/shared/api/types";

/** Return for each slot of a node the index of the allocation that holds it; null when free. */
export function holdersBySlot(node: NodeView): (number | null)[] {
  const holders = new Array<number | null>(node.hardware.slots).fill(null);
  node.allocations.forEach(({ allocation }, index) => {
    for (const slot of allocation.slots) if (slot in holders) holders[slot] = index;
  });
  return holders;
}
