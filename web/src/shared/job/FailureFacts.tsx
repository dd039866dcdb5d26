// Where a failure happened: rank, node, signal, step, path.

import type { Failure } from "@/shared/api/types";
import { count } from "@/shared/format/numbers";

export function FailureFacts({ failure }: { failure: Failure }) {
  const { rank, node, signal, exit_code, step, path } = failure;
  const facts = [
    rank !== null && `rank ${rank}`,
    node !== null && `on ${node}`,
    signal !== null && `ended by ${signal}`,
    signal === null && exit_code !== null && `exit code ${exit_code}`,
    step !== null && `at step ${count(step)}`,
    path !== null && path,
  ].filter((fact) => fact !== false);
  return facts.length > 0 ? <p className="muted">{facts.join(" · ")}</p> : null;
}
