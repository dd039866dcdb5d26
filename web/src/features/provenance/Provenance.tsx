// Code, software and hardware of an attempt, and changes since the previous attempt.
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import type { Attempt, Job } from "@/shared/api/types";
import { count } from "@/shared/format/numbers";
import { attemptsQuery } from "@/shared/job/api";
import { useView } from "@/shared/job/view";
import { CopyButton } from "@/shared/ui/CommandLine";
import { Choice, Fact } from "@/shared/ui/Field";
import { Absent, EmptyState } from "@/shared/ui/Notice";
import { Table } from "@/shared/ui/table/Table";
import { changesBetween, factsOf, packagesOf, type Provenance as Record_ } from "./compare";
import "./provenance.css";

export function Provenance({ job }: { job: Job }) {
  const view = useView();
  const attempts = useQuery(attemptsQuery(job.id));
  if (!attempts.data) return <Absent query={attempts} lines={10} />;
  const known = attempts.data.filter((attempt) => attempt.provenance !== null);
  const wanted = view.attempt;
  const shown = known.find(({ number }) => number === wanted) ?? known[0];
  if (!shown) {
    return (
      <EmptyState title="No provenance yet">
        <p>Each attempt records its code, software and hardware when its ranks start.</p>
      </EmptyState>
    );
  }
  const previous = known.find(({ number }) => number < shown.number);
  return (
    <div className="stack">
      <Choice
        label="Attempt"
        value={shown.number}
        onChange={(attempt) => view.change({ attempt })}
        options={known.map(({ number, layout_name }) => [number, `${number} · ${layout_name}`])}
      />
      {previous && <Changes before={previous} after={shown} />}
      <Facts provenance={shown.provenance ?? {}} />
    </div>
  );
}

const CHANGE_COLUMNS = [
  { name: "name", label: "What" },
  { name: "before", label: "Before" },
  { name: "after", label: "Now" },
];

function Changes({ before, after }: { before: Attempt; after: Attempt }) {
  const changes = changesBetween(before.provenance ?? {}, after.provenance ?? {});
  if (changes.length === 0) {
    return <p className="muted">Nothing changed since attempt {before.number}.</p>;
  }
  return (
    <section>
      <h2 className="job-section row">Changed since attempt {before.number}</h2>
      <Table label="Changes" columns={CHANGE_COLUMNS}>
        {changes.map((change) => (
          <tr key={change.name}>
            <td>{change.name}</td>
            <td>{change.before}</td>
            <td>
              <strong>{change.after}</strong>
            </td>
          </tr>
        ))}
      </Table>
    </section>
  );
}

function Facts({ provenance }: { provenance: Record_ }) {
  const diff = typeof provenance.git_diff === "string" ? provenance.git_diff : null;
  return (
    <>
      <dl className="job-details provenance-facts">
        {factsOf(provenance).map(({ name, value }) => (
          <Fact key={name} name={name}>
            {value}
          </Fact>
        ))}
      </dl>
      {diff === "" && <p className="muted">The working tree was clean.</p>}
      {diff && (
        <section>
          <h2 className="job-section row">
            Uncommitted changes {provenance.git_diff_truncated === true && "(cut)"}
            <CopyButton text={diff} />
          </h2>
          <Diff text={diff} />
        </section>
      )}
      <Packages provenance={provenance} />
    </>
  );
}

const KINDS: Record<string, string> = { "+": "tone-ok", "-": "tone-bad", "@": "muted" };

function Diff({ text }: { text: string }) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: the keys that scroll need the focus
    <pre className="diff panel" tabIndex={0}>
      {text
        .trimEnd()
        .split("\n")
        .map((line, index) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: lines of a text that never changes
          <span key={index} className={KINDS[line.charAt(0)]}>
            {`${line}\n`}
          </span>
        ))}
    </pre>
  );
}

function Packages({ provenance }: { provenance: Record_ }) {
  const [search, setSearch] = useState("");
  const packages = packagesOf(provenance);
  if (packages.length === 0) return null;
  const found = packages.filter(([name]) => name.toLowerCase().includes(search.toLowerCase()));
  return (
    <section>
      <h2 className="job-section row">{count(packages.length)} packages</h2>
      <input
        className="input provenance-search"
        type="search"
        placeholder="Find a package"
        aria-label="Find a package"
        value={search}
        onChange={(event) => setSearch(event.target.value)}
      />
      <ul className="packages">
        {found.map(([name, version]) => (
          <li key={name}>
            {name} <span className="muted">{version}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}
