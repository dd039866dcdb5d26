// The nodes: their slots, the holders of the slots, and their state.
import { useQuery } from "@tanstack/react-query";
import { nodesQuery } from "@/shared/api/queries";
import type { NodeView } from "@/shared/api/types";
import { useDraft } from "@/shared/api/useSettled";
import { count, plural } from "@/shared/format/numbers";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Absent, EmptyState } from "@/shared/ui/Notice";
import { NODES } from "@/shared/url/pages";
import { usePageParams } from "@/shared/url/params";
import { AddNode } from "./AddNode";
import { NodeCard } from "./NodeCard";
import { isFound, problemsOf } from "./status";
import "./nodes.css";

/** Period of reads for ages: heartbeats cause no events. */
const REFRESH_MILLISECONDS = 15_000;
const TYPING_MILLISECONDS = 200;

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
  const [{ search, isTroubled }, change] = usePageParams(NODES);
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
  const troubled = nodes.filter((node) => problemsOf(node).length > 0);
  const shown = (isTroubled ? troubled : nodes).filter((node) => isFound(node, search ?? ""));
  return (
    <div className="stack">
      <search className="toolbar" aria-label="Filter nodes">
        <Search text={search ?? ""} onChange={(text) => change({ search: text || null })} />
        <fieldset className="segments">
          <legend className="visually-hidden">Nodes</legend>
          <Segment
            isOn={!isTroubled}
            size={nodes.length}
            onChoose={() => change({ isTroubled: false })}
          >
            all
          </Segment>
          <Segment
            isOn={isTroubled}
            size={troubled.length}
            onChoose={() => change({ isTroubled: true })}
          >
            with problems
          </Segment>
        </fieldset>
        <output className="muted">
          {shown.length < nodes.length &&
            `${count(shown.length)} of ${plural(nodes.length, "node")}`}
        </output>
      </search>
      <ul className="nodes">
        {shown.map((node) => (
          <NodeCard key={node.name} node={node} />
        ))}
      </ul>
      {shown.length === 0 && <EmptyState title="No node matches" />}
      <CommandLine command="trainyard nodes" label="Lists the same nodes" />
    </div>
  );
}

interface SearchProps {
  text: string;
  onChange: (text: string) => void;
}

/** Typed text enters the URL after a short pause. */
function Search({ text, onChange }: SearchProps) {
  const [typed, setTyped] = useDraft(text, onChange, TYPING_MILLISECONDS);
  return (
    <input
      className="input nodes-search"
      type="search"
      placeholder="Name, label, job or problem"
      aria-label="Search by words in name, label, job or problem"
      autoComplete="off"
      spellCheck={false}
      value={typed}
      onChange={(event) => setTyped(event.target.value)}
    />
  );
}

interface SegmentProps {
  isOn: boolean;
  /** Number of nodes. */
  size: number;
  onChoose: () => void;
  children: string;
}

function Segment({ isOn, size, onChoose, children }: SegmentProps) {
  return (
    <button type="button" className="segment" aria-pressed={isOn} onClick={onChoose}>
      {children}
      <span className="faint">{count(size)}</span>
    </button>
  );
}

function summary(nodes: readonly NodeView[]): string {
  const slots = nodes.reduce((sum, node) => sum + node.hardware.slots, 0);
  const online = nodes.filter((node) => node.online);
  const usable = online.filter((node) => !node.draining);
  const free = usable.reduce((sum, node) => sum + node.free_slots, 0);
  return `${count(free)} of ${plural(slots, "slot")} free · ${online.length} of ${nodes.length} online`;
}
