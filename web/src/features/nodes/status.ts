// The state of a node in a word, and the search for nodes.
import type { NodeView } from "@/shared/api/types";
import { count, plural } from "@/shared/format/numbers";
import { moment } from "@/shared/format/time";
import type { Tone } from "@/shared/ui/Badge";

export interface NodeStatus {
  word: "online" | "offline" | "draining" | "cordoned";
  tone: Tone;
  /** Consequence for jobs. */
  title: string;
}

export function statusOf(node: NodeView): NodeStatus {
  if (!node.online) {
    const title = "No heartbeat from its worker; its jobs may still run";
    return { word: "offline", tone: "bad", title };
  }
  if (node.notice) {
    const title = `${node.notice}: no new placements; running jobs save and move`;
    return { word: "draining", tone: "bad", title };
  }
  if (!node.drain) {
    return { word: "online", tone: "ok", title: `${count(node.free_slots)} slots free` };
  }
  const { running, by, at } = node.drain;
  if (running === "finish") {
    const title = `Cordoned by ${by}, ${moment(at)}: no new placements, running jobs may finish`;
    return { word: "cordoned", tone: "warn", title };
  }
  const title = `Drained by ${by}, ${moment(at)}: no new placements, running jobs save and move`;
  return { word: "draining", tone: "warn", title };
}

/** Return why nothing is placed on a node or on some of its slots, and its other problems. */
export function problemsOf(node: NodeView): string[] {
  const status = statusOf(node);
  const reasons = node.drain?.reasons ?? [];
  return [
    ...(status.word === "online" ? [] : [status.title]),
    ...reasons,
    ...node.withheld.map(({ slot, reason }) => `slot ${slot} is withheld: ${reason}`),
    // The reason of a cordon repeats the problem that caused it.
    ...node.problems.filter(
      (problem) => !reasons.some((reason) => `${reason},`.startsWith(`${problem},`)),
    ),
    ...node.slow_slots.map(
      ({ slot, jobs }) => `slot ${slot} slowed ${plural(jobs, "job")} of the last 30 days`,
    ),
  ];
}

/** Whether a node's name, labels, devices, jobs and problems contain every word of a search. */
export function isFound(node: NodeView, search: string): boolean {
  const texts = [
    node.name,
    statusOf(node).word,
    node.hardware.device_name,
    ...labelsOf(node),
    ...problemsOf(node),
    ...node.allocations.map(({ job_name }) => job_name),
  ];
  const text = texts.join("\n").toLowerCase();
  return search
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}

/** Labels as `zone=a`, by key. */
export function labelsOf(node: NodeView): string[] {
  return Object.entries(node.labels)
    .map(([key, value]) => `${key}=${value}`)
    .sort();
}
