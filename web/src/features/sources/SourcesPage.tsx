// The sources of nodes, each with its state, limits and requests.
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { sourcesQuery } from "@/shared/api/queries";
import type { Source } from "@/shared/api/types";
import { useBarriers } from "@/shared/api/useMay";
import { count, hours, plural } from "@/shared/format/numbers";
import { Badge } from "@/shared/ui/Badge";
import { Button } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Absent, EmptyState } from "@/shared/ui/Notice";
import { AddSource } from "./AddSource";
import { Requests } from "./Requests";
import { type Action, SourceDialog } from "./SourceDialog";
import { standingOf } from "./state";
import "./sources.css";

const REFRESH_MILLISECONDS = 5_000;
export function SourcesPage() {
  const sources = useQuery({ ...sourcesQuery, refetchInterval: REFRESH_MILLISECONDS });
  const barrier = useBarriers()("sources:write");
  return (
    <>
      <title>Sources · Trainyard</title>
      <header className="page-header">
        <h1>Sources</h1>
        <AddSource />
      </header>
      {sources.data ? (
        <div className="stack">
          {sources.data.length === 0 && (
            <EmptyState title="No sources">
              <p>A provisioner registers a Slurm cluster, a Kubernetes namespace or machines.</p>
            </EmptyState>
          )}
          {sources.data.map((source) => (
            <SourceCard key={source.name} source={source} barrier={barrier} />
          ))}
          <CommandLine command="trainyard sources" label="Lists the same sources" />
        </div>
      ) : (
        <Absent query={sources} />
      )}
    </>
  );
}

interface SourceCardProps {
  source: Source;
  /** Why the caller may not change it. */
  barrier: string | null;
}

function SourceCard({ source, barrier }: SourceCardProps) {
  const [action, setAction] = useState<Action | null>(null);
  const { name, limits, shape, needs_login: login } = source;
  const { word, tone, why } = standingOf(source);
  const quota = limits.node_hours_per_month;
  return (
    <section className="source panel" aria-label={name}>
      <header className="source-header">
        <h2>{name}</h2>
        <Badge tone={tone}>{word}</Badge>
        <span className="muted">
          {source.kind} · {plural(shape.slots, `${shape.device} slot`)} a node
        </span>
        <span className="source-actions">
          <Button small barrier={barrier} onClick={() => setAction("check")}>
            Check
          </Button>
          <Button
            small
            barrier={barrier}
            onClick={() => setAction(source.paused ? "unpause" : "pause")}
          >
            {source.paused ? "Unpause" : "Pause"}
          </Button>
          <Button
            small
            barrier={barrier}
            disabled={source.paused}
            onClick={() => setAction("request")}
          >
            Request nodes
          </Button>
          <Button small look="quiet" barrier={barrier} onClick={() => setAction("delete")}>
            Delete
          </Button>
        </span>
      </header>
      {why && (
        <p className="source-why">
          {why}
          {login && ". Run this on the machine of the provisioner:"}
        </p>
      )}
      {login && <CommandLine command={login.command} label="Renews the login" isText />}
      <dl className="source-facts">
        <Fact
          name="Nodes running"
          value={`${count(source.nodes_running)} / ${count(limits.nodes)}`}
        />
        <Fact name="Nodes waiting" value={count(source.nodes_asked)} />
        <Fact
          name="Requests waiting"
          value={`${count(source.pending_requests)} / ${count(limits.pending)}`}
        />
        <Fact
          name="Node-hours this month"
          value={hours(source.node_hours_this_month) + (quota == null ? "" : ` / ${hours(quota)}`)}
        />
      </dl>
      <Requests source={name} barrier={barrier} />
      {action && <SourceDialog source={source} action={action} onClose={() => setAction(null)} />}
    </section>
  );
}

function Fact({ name, value }: { name: string; value: string }) {
  return (
    <div>
      <dt className="small muted">{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}
