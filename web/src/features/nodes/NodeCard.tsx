// One machine.
import type { NodeView } from "@/shared/api/types";
import { bytes, count, plural } from "@/shared/format/numbers";
import { moment } from "@/shared/format/time";
import { Badge } from "@/shared/ui/Badge";
import { cx } from "@/shared/ui/cx";
import { Fact } from "@/shared/ui/Field";
import { RelativeTime } from "@/shared/ui/RelativeTime";
import { DrainButton } from "./DrainButton";
import { Slots } from "./Slots";

const ISOLATION = {
  user: "a Unix user for each attempt",
  namespace: "a user of the worker's namespace for each attempt",
  none: "none: code of a job can read this node's token",
};

export function NodeCard({ node }: { node: NodeView }) {
  const { hardware } = node;
  return (
    <li className={cx("node panel stack", !node.online && "node-offline")}>
      <header className="row">
        <h2 className="ellipsis" title={node.name}>
          {node.name}
        </h2>
        <Status node={node} />
        <DrainButton node={node} />
      </header>
      <Slots node={node} />
      <dl className="facts-column small">
        <Fact name="Device">
          {hardware.device_name} · {bytes(hardware.device_memory_bytes)} a slot
        </Fact>
        <Fact name="Host">
          {plural(hardware.cores, "core")} · {bytes(hardware.memory_bytes)}
        </Fact>
        {node.notice && <Fact name="Notice">{node.notice}</Fact>}
        {node.slow_slots.length > 0 && (
          <Fact name="Slow slots">
            {node.slow_slots
              .map(({ slot, jobs }) => `slot ${slot} slowed ${plural(jobs, "job")}`)
              .join(", ")}
          </Fact>
        )}
        <Fact name="Storage roots">{node.roots.join(", ") || "none"}</Fact>
        <Fact name="Address">
          <span className="mono">{node.address}</span> · version {node.version}
        </Fact>
        <Fact name="Isolation">{ISOLATION[hardware.isolation]}</Fact>
        <Fact name="Heartbeat">
          <RelativeTime at={node.heartbeat_at} />
          <span title={moment(node.registered_at)}>
            {" "}
            · joined <RelativeTime at={node.registered_at} isSentence />
          </span>
        </Fact>
      </dl>
    </li>
  );
}

function Status({ node }: { node: NodeView }) {
  if (!node.online) {
    return (
      <Badge tone="bad" title="No heartbeat from its worker; its jobs may still run">
        ✕ offline
      </Badge>
    );
  }
  if (node.notice) {
    return (
      <Badge tone="bad" title={`${node.notice}: no new placements; running jobs save and move`}>
        ◑ draining
      </Badge>
    );
  }
  if (node.draining) {
    return (
      <Badge tone="warn" title={draining(node)}>
        ◑ draining
      </Badge>
    );
  }
  return (
    <Badge tone="ok" title={`${count(node.free_slots)} slots free`}>
      ● online
    </Badge>
  );
}

function draining({ drain }: NodeView): string {
  if (!drain) return "No new placements";
  const rest = drain.running === "move" ? "running jobs save and move" : "running jobs may finish";
  return `Drained by ${drain.by}, ${moment(drain.at)}: no new placements, ${rest}`;
}
