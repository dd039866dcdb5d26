// The slots of a node as squares, and the jobs that hold them.
import { Link } from "react-router";
import type { NodeView } from "@/shared/api/types";
import { plural } from "@/shared/format/numbers";
import { cx } from "@/shared/ui/cx";
import { holdersBySlot } from "./holders";

/** Number of colours that colour-blind people can distinguish; a seventh holder repeats the first. */
const COLOURS = 6;

export function Slots({ node }: { node: NodeView }) {
  const holders = holdersBySlot(node);
  const jobs = node.allocations;
  const withheld = new Map(node.withheld.map(({ slot, reason }) => [slot, reason]));
  return (
    <div>
      <div className="slots-row" role="img" aria-label={words(node)}>
        {holders.map((holder, slot) => (
          <span
            // biome-ignore lint/suspicious/noArrayIndexKey: a slot is its index
            key={slot}
            className={cx(
              "slot",
              holder !== null && `part-${(holder % COLOURS) + 1}`,
              withheld.has(slot) && "slot-withheld",
            )}
            title={`slot ${slot}: ${use(holder === null ? null : jobs[holder]?.job_name, withheld.get(slot))}`}
          />
        ))}
      </div>
      <ul className="slots-jobs">
        {jobs.map(({ job_id, job_name, allocation }, holder) => (
          <li key={`${job_id} ${allocation.slots[0]}`} className="row">
            <span className={`legend-mark part-${(holder % COLOURS) + 1}`} />
            {job_id === null ? (
              <span className="muted ellipsis">{job_name}</span>
            ) : (
              <Link className="ellipsis" to={`/jobs/${job_id}`} title={job_name}>
                {job_name}
              </Link>
            )}
            <span className="muted">{plural(allocation.slots.length, "slot")}</span>
          </li>
        ))}
        {withheld.size > 0 && (
          <li className="row">
            <span className="legend-mark slot-withheld" />
            withheld
            <span className="muted">{plural(withheld.size, "slot")}</span>
          </li>
        )}
        {node.free_slots > 0 && (
          <li className="muted">
            {plural(node.free_slots, "slot")} {node.online ? "free" : "out of reach"}
          </li>
        )}
      </ul>
    </div>
  );
}

function use(job: string | null | undefined, withheld: string | undefined): string {
  return job ?? (withheld === undefined ? "free" : `withheld: ${withheld}`);
}

function words(node: NodeView): string {
  return `${node.free_slots} of ${plural(node.hardware.slots, "slot")} free`;
}
