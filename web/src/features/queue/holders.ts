// Holders of the cluster's slots, by job.
import type { NodeView } from "@/shared/api/types";

export interface Holder {
  /** Null for all jobs that the user does not see, which count together. */
  jobId: string | null;
  name: string;
  slots: number;
  nodes: number;
}

export interface Held {
  /** The jobs with held slots, the largest first. */
  holders: Holder[];
  held: number;
  free: number;
  /** Free slots of offline or draining nodes, which take no jobs. */
  drained: number;
  /** Withheld slots of all nodes. */
  withheld: number;
  total: number;
}

export function heldSlots(nodes: readonly NodeView[]): Held {
  const byJob = new Map<string | null, Holder>();
  let [free, drained, withheld, total] = [0, 0, 0, 0];
  for (const node of nodes) {
    total += node.hardware.slots;
    if (node.online && !node.draining) free += node.free_slots;
    else drained += node.free_slots;
    withheld += node.withheld.length;
    for (const { job_id, job_name, allocation } of node.allocations) {
      const holder = byJob.get(job_id) ?? { jobId: job_id, name: job_name, slots: 0, nodes: 0 };
      holder.slots += allocation.slots.length;
      holder.nodes += 1;
      byJob.set(job_id, holder);
    }
  }
  const holders = [...byJob.values()].sort(
    (one, other) => other.slots - one.slots || one.name.localeCompare(other.name),
  );
  const held = holders.reduce((sum, { slots }) => sum + slots, 0);
  return { holders, held, free, drained, withheld, total };
}
