// The card of one node.
import { Link } from "react-router";
import type { NodeView } from "@/shared/api/types";
import { bytes, fixed, plural } from "@/shared/format/numbers";
import { moment } from "@/shared/format/time";
import { Badge } from "@/shared/ui/Badge";
import { cx } from "@/shared/ui/cx";
import { Fact } from "@/shared/ui/Field";
import { RelativeTime } from "@/shared/ui/RelativeTime";
import { nodeRequestPath } from "@/shared/url/pages";
import { DrainButton } from "./DrainButton";
import { NodeHistory } from "./NodeHistory";
import { Slots } from "./Slots";
import { labelsOf, type NodeStatus, problemsOf, statusOf } from "./status";

/** Label of the nodes of a source; its value is the source's name. */
const SOURCE_LABEL = "source";
const ISOLATION = {
  user: "a Unix user for each attempt",
  namespace: "a user of the worker's namespace for each attempt",
  owner: "the Unix account of each job's owner",
  none: "none: code of a job can read this node's token",
};
const GLYPHS: Record<NodeStatus["word"], string> = {
  online: "●",
  offline: "✕",
  draining: "◑",
  cordoned: "⊘",
};

interface NodeCardProps {
  node: NodeView;
  /** Whether it is the head of the node's own page, with every fact and without a chart. */
  isWhole?: boolean;
}

export function NodeCard({ node, isWhole }: NodeCardProps) {
  const { hardware } = node;
  const status = statusOf(node);
  const labels = labelsOf(node);
  return (
    <li className={cx("node panel stack", !node.online && "node-offline")}>
      <header className="row">
        {isWhole ? (
          <h1>{node.name}</h1>
        ) : (
          <h2 className="ellipsis" title={node.name}>
            <Link to={`/nodes/${node.name}`}>{node.name}</Link>
          </h2>
        )}
        <Badge tone={status.tone} title={status.title}>
          {GLYPHS[status.word]} {status.word}
        </Badge>
        <DrainButton node={node} />
      </header>
      <Slots node={node} />
      {!isWhole && <NodeHistory node={node} />}
      <Problems node={node} />
      <dl className="facts-column small">
        <Fact name="Device">
          {hardware.device_name} · {bytes(hardware.device_memory_bytes)} a slot
        </Fact>
        {labels.length > 0 && (
          <Fact name="Labels">
            <span className="node-labels mono">
              {labels.map((label) => (
                <span key={label} className="node-label">
                  {label}
                </span>
              ))}
            </span>
          </Fact>
        )}
        {isWhole && <Details node={node} />}
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

function Details({ node }: { node: NodeView }) {
  const { hardware } = node;
  return (
    <>
      <Allocation node={node} />
      <Fact name="Host">
        {plural(hardware.cores, "core")} · {bytes(hardware.memory_bytes)}
      </Fact>
      <Fact name="Storage roots">{node.roots.join(", ") || "none"}</Fact>
      <Fact name="Address">
        <span className="mono">{node.address}</span> · version {node.version}
      </Fact>
      {node.clock_skew_seconds != null && (
        <Fact name="Clock">{skew(node.clock_skew_seconds)} the database's</Fact>
      )}
      {hardware.driver && <Fact name="Driver">{hardware.driver}</Fact>}
      <Fact name="Isolation">{ISOLATION[hardware.isolation]}</Fact>
    </>
  );
}

/** The source of a node, and the end of its allocation. */
function Allocation({ node }: { node: NodeView }) {
  const { request_id: request, ends_at: end } = node;
  if (!request) return null;
  return (
    <Fact name="Allocation">
      <Link to={nodeRequestPath(request)}>request {request}</Link> of{" "}
      {node.labels[SOURCE_LABEL] ?? "a source"}
      {end && ` · ends ${moment(end)}`}
    </Fact>
  );
}

/** The difference of a clock: `0.02 s ahead of`. */
function skew(seconds: number): string {
  return `${fixed(Math.abs(seconds), 2)} s ${seconds < 0 ? "behind" : "ahead of"}`;
}

/** Why nothing is placed on the node or on some of its slots, and its other problems. */
function Problems({ node }: { node: NodeView }) {
  const problems = problemsOf(node);
  if (problems.length === 0) return null;
  return (
    <ul className="node-problems small" aria-label="Problems">
      {problems.map((problem) => (
        <li key={problem}>{problem}</li>
      ))}
    </ul>
  );
}
