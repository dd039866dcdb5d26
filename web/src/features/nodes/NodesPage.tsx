// The machines: what they offer, who holds it, whether they live.
import { useQuery } from "@tanstack/react-query";
import { nodesQuery } from "@/shared/api/queries";
import type { NodeView } from "@/shared/api/types";
import { count, plural } from "@/shared/format/numbers";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Absent, EmptyState } from "@/shared/ui/Notice";
import { AddNode } from "./AddNode";
import { NodeCard } from "./NodeCard";
import "./nodes.css";

/** Heartbeats make no events, so ages are read anew now and then. */
const REFRESH_MILLISECONDS = 15_000;

export function NodesPage() {
  const nodes = useQuery({ ...nodesQuery, refetchInterval: REFRESH_MILLISECONDS });
  const { data } = nodes;
  return (
    <>
      <title>Nodes · Trainyard</title>
      <header className="page-header">
        <h1>Nodes</h1>
        {data && data.length > 0 && <span className="muted">{summary(data)}</span>}
        <div className="page-actions row">
          <AddNode />
        </div>
      </header>
      {data ? <Content nodes={data} /> : <Absent query={nodes} lines={8} />}
    </>
  );
}

function Content({ nodes }: { nodes: NodeView[] }) {
  if (nodes.length === 0) {
    return (
      <EmptyState title="No node has joined yet">
        <p>
          Jobs wait until a node joins. Add a machine with a join token, or start everything on this
          machine:
        </p>
        <CommandLine command="trainyard up" />
      </EmptyState>
    );
  }
  return (
    <div className="stack">
      <ul className="nodes">
        {nodes.map((node) => (
          <NodeCard key={node.name} node={node} />
        ))}
      </ul>
      <CommandLine command="trainyard nodes" label="Lists the same nodes" />
    </div>
  );
}

function summary(nodes: readonly NodeView[]): string {
  const slots = nodes.reduce((sum, node) => sum + node.hardware.slots, 0);
  const online = nodes.filter((node) => node.online);
  const usable = online.filter((node) => !node.draining);
  const free = usable.reduce((sum, node) => sum + node.free_slots, 0);
  return `${count(free)} of ${plural(slots, "slot")} free · ${online.length} of ${nodes.length} online`;
}
