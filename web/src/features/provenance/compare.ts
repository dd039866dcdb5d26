// The provenance of an attempt, and its differences from another attempt. Pure.

export type Provenance = Record<string, unknown>;

export interface Facts {
  name: string;
  value: string;
}

const SHOWN: readonly (readonly [key: string, name: string])[] = [
  ["git_commit", "Commit"],
  ["torch", "torch"],
  ["cuda", "CUDA"],
  ["cuda_driver", "Driver"],
  ["nccl", "NCCL"],
  ["python", "Python"],
  ["host", "Host"],
  ["platform", "Platform"],
  ["cpu_count", "CPU cores"],
  ["gpus", "GPUs"],
  ["launch", "Launch"],
];

/** Return the known facts, the most important first. */
export function factsOf(provenance: Provenance): Facts[] {
  return SHOWN.filter(([key]) => provenance[key] != null).map(([key, name]) => ({
    name,
    value: textOf(provenance[key]),
  }));
}

/** Equal GPUs are counted: `4 × NVIDIA H200`. */
function textOf(value: unknown): string {
  if (!Array.isArray(value)) return String(value);
  const counts = new Map<string, number>();
  for (const item of value) counts.set(String(item), (counts.get(String(item)) ?? 0) + 1);
  const parts = [...counts].map(([item, many]) => (many > 1 ? `${many} × ${item}` : item));
  return parts.join(", ") || "none";
}

export function packagesOf(provenance: Provenance): [name: string, version: string][] {
  const { packages } = provenance;
  if (typeof packages !== "object" || packages === null) return [];
  return Object.entries(packages).map(([name, version]) => [name, String(version)]);
}

export interface Changed {
  name: string;
  before: string;
  after: string;
}

/** Return the differences of two attempts: facts, uncommitted changes, packages. */
export function changesBetween(before: Provenance, after: Provenance): Changed[] {
  const [left, right] = [linesOf(before), linesOf(after)];
  const names = [...new Set([...left.keys(), ...right.keys()])];
  return names
    .map((name) => ({ name, before: left.get(name) ?? "–", after: right.get(name) ?? "–" }))
    .filter((line) => line.before !== line.after);
}

function linesOf(provenance: Provenance): Map<string, string> {
  const lines = new Map(factsOf(provenance).map(({ name, value }) => [name, value]));
  lines.set("Uncommitted changes", diffWords(provenance.git_diff));
  for (const [name, version] of packagesOf(provenance)) lines.set(`package ${name}`, version);
  return lines;
}

/** Describe a diff with its size, so that different diffs are distinguishable. */
function diffWords(diff: unknown): string {
  if (typeof diff !== "string" || diff === "") return "none";
  return `${diff.split("\n").length} lines`;
}
