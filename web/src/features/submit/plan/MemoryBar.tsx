// Memory of the fullest rank by part, relative to the smallest slot.
import type { MemoryEstimate } from "@/shared/api/types";
import { bytes } from "@/shared/format/numbers";

type Part = Exclude<keyof MemoryEstimate, "total" | "peak_at">;

const PARTS: readonly (readonly [Part, string])[] = [
  ["weights", "weights"],
  ["gradients", "gradients"],
  ["optimizer_states", "optimizer states"],
  ["gathered", "gathered layers"],
  ["activations", "activations"],
  ["logits", "logits"],
  ["slack", "slack"],
];

interface MemoryBarProps {
  memory: MemoryEstimate;
  /** Bytes of a slot, if known. */
  available: number | null | undefined;
}

export function MemoryBar({ memory, available }: MemoryBarProps) {
  const whole = Math.max(memory.total, available ?? 0);
  return (
    <>
      <h3>
        Memory of the fullest rank{" "}
        <span className="muted">
          {bytes(memory.total)}
          {available ? ` of ${bytes(available)}` : ""}
        </span>
      </h3>
      <div
        className="memory"
        role="img"
        aria-label={PARTS.map(([part, label]) => `${label} ${bytes(memory[part])}`).join(", ")}
      >
        {PARTS.map(([part, label], index) => (
          <span
            key={part}
            className={`memory-part part-${index + 1}`}
            style={{ width: `${(memory[part] / whole) * 100}%` }}
            title={`${label}: ${bytes(memory[part])}`}
          />
        ))}
        {available && memory.total > available ? (
          <span className="memory-limit" style={{ left: `${(available / whole) * 100}%` }} />
        ) : null}
      </div>
      <ul className="memory-legend">
        {PARTS.filter(([part]) => memory[part] > 0).map(([part, label]) => (
          <li key={part} className="row">
            <span className={`legend-mark part-${PARTS.findIndex(([p]) => p === part) + 1}`} />
            {label} <span className="legend-size">{bytes(memory[part])}</span>
          </li>
        ))}
      </ul>
      <p className="faint">Peak: backward of the {PEAKS[memory.peak_at]}.</p>
    </>
  );
}

const PEAKS: Record<MemoryEstimate["peak_at"], string> = {
  loss: "loss",
  head: "head",
  block: "last block",
  embedding: "embedding",
};
