// Holders of the slots: one stacked bar, and the jobs with the most slots.
import { Link } from "react-router";
import type { NodeView } from "@/shared/api/types";
import { count, plural } from "@/shared/format/numbers";
import { heldSlots } from "./holders";

/** Number of colours that colour-blind people can distinguish; further jobs share a seventh. */
const MAX_NAMED = 6;

export function HeldSlots({ nodes }: { nodes: readonly NodeView[] }) {
  const { holders, held, free, drained, withheld, total } = heldSlots(nodes);
  if (total === 0) {
    return (
      <p className="panel queue-held">
        No node has joined: jobs wait until one does. <Link to="/nodes">Nodes</Link>
      </p>
    );
  }
  const named = holders.slice(0, MAX_NAMED);
  const others = holders.slice(MAX_NAMED);
  const rest = others.reduce((sum, { slots }) => sum + slots, 0);
  return (
    <section className="panel queue-held">
      <h2>
        {count(held)} of {plural(total, "slot")} held{" "}
        <span className="muted">
          {count(free)} free{drained > 0 && `, ${count(drained)} on nodes that take no jobs`}
          {withheld > 0 && `, ${count(withheld)} withheld`}
        </span>
      </h2>
      <div className="queue-bar" aria-hidden="true">
        {named.map(({ jobId, name, slots }, place) => (
          <span
            key={jobId}
            className={`part-${place + 1}`}
            style={{ flexGrow: slots }}
            title={`${name}: ${plural(slots, "slot")}`}
          />
        ))}
        {rest > 0 && <span className="part-7" style={{ flexGrow: rest }} title="other jobs" />}
        {free > 0 && <span className="queue-free" style={{ flexGrow: free }} title="free" />}
        {drained > 0 && (
          <span
            className="queue-barred"
            style={{ flexGrow: drained }}
            title="on nodes that take no jobs"
          />
        )}
        {withheld > 0 && (
          <span className="queue-barred" style={{ flexGrow: withheld }} title="withheld" />
        )}
      </div>
      <ul className="queue-holders">
        {named.map(({ jobId, name, slots, nodes: on }, place) => (
          <li key={jobId} className="row">
            <span className={`legend-mark part-${place + 1}`} />
            {jobId === null ? (
              <span className="muted ellipsis">{name}</span>
            ) : (
              <Link className="ellipsis" to={`/jobs/${jobId}`} title={name}>
                {name}
              </Link>
            )}
            <span className="muted">
              {plural(slots, "slot")} on {plural(on, "node")}
            </span>
          </li>
        ))}
        {others.length > 0 && (
          <li className="row">
            <span className="legend-mark part-7" />
            <Link to="/nodes">{plural(others.length, "other job")}</Link>
            <span className="muted">{plural(rest, "slot")}</span>
          </li>
        )}
      </ul>
    </section>
  );
}
