// Configuration and summary of a program, or of an imported run.
import { useState } from "react";
import type { Job } from "@/shared/api/types";
import { plural } from "@/shared/format/numbers";
import { command } from "@/shared/format/shell";
import { factText } from "@/shared/format/spec";
import { useReference } from "@/shared/job/reference";
import { CommandLine } from "@/shared/ui/CommandLine";
import { EmptyState } from "@/shared/ui/Notice";
import { foundIn, type Values } from "./found";
import "./facts.css";

/** With more values than this, a search field appears. */
const MANY = 12;

export function Facts({ job }: { job: Job }) {
  const reference = useReference(job);
  const [search, setSearch] = useState("");
  if (!job.facts) {
    return (
      <EmptyState title="No facts yet">
        <p>
          A script states its configuration by <code>trainyard.init(config=...)</code> or{" "}
          <code>run.config</code>, and its results by <code>run.summary</code>;{" "}
          <code>program.arguments</code> are among them.
        </p>
      </EmptyState>
    );
  }
  const { config, summary } = job.facts;
  const total = Object.keys(config).length + Object.keys(summary).length;
  return (
    <div className="stack">
      {total > MANY && (
        <input
          className="input facts-search"
          type="search"
          placeholder="Find a name or a value"
          aria-label="Find a name or a value"
          value={search}
          onChange={(event) => setSearch(event.target.value)}
        />
      )}
      <div className="facts-grid">
        <Section title="Summary" values={summary} search={search} />
        <Section title="Configuration" values={config} search={search} />
      </div>
      <CommandLine command={command("show", reference)} />
    </div>
  );
}

function Section({ title, values, search }: { title: string; values: Values; search: string }) {
  const all = Object.keys(values).length;
  if (all === 0) return null;
  const found = foundIn(values, search);
  return (
    <section className="panel facts-section" aria-label={title}>
      <h2 className="facts-title">
        {title}{" "}
        <span className="muted small">
          {found.length < all ? `${found.length} of ${plural(all, "value")}` : plural(all, "value")}
        </span>
      </h2>
      <dl className="facts">
        {found.map(([name, value]) => (
          <div key={name}>
            <dt title={name}>{name}</dt>
            <dd className="mono">{factText(value)}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}
