// The colour of an event.
import type { EventView } from "@/shared/api/types";
import type { Tone } from "@/shared/ui/Badge";

/** Return the tone of an event; only success and failure have a colour. */
export function toneOf(event: EventView): Tone {
  switch (event.kind) {
    case "running":
    case "resumed":
    case "straggler_gone":
      return "accent";
    case "unreachable":
    case "line_skipped":
    case "output_dropped":
    case "checkpoint_damaged":
    case "straggler_found":
      return "warn";
    case "node_ended":
    case "attempt_ended":
      return ENDS[event.data.outcome] ?? "neutral";
    case "operation_ended": // a verification that finds damage has succeeded as an operation
      return event.data.ok === false ? "warn" : (ENDS[event.data.state] ?? "neutral");
    case "job_ended":
      return ENDS[event.data.state] ?? "neutral";
    case "continuity_checked":
    case "request_answered":
      return event.data.ok ? "ok" : "bad";
    default:
      return "neutral";
  }
}

const ENDS: Record<string, Tone> = { failed: "bad", succeeded: "ok" };
