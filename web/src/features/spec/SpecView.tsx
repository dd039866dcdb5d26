// The spec as submitted, and the values that replace its own.
import type { Job } from "@/shared/api/types";
import { useBarriers } from "@/shared/api/useMay";
import { type JsonObject, sparseSpec } from "@/shared/format/document";
import { command } from "@/shared/format/shell";
import { OF_THE_TRAINER, valueText } from "@/shared/format/spec";
import { sparseToml } from "@/shared/format/toml";
import { useReference } from "@/shared/job/reference";
import { useView } from "@/shared/job/view";
import { Button, ButtonLink } from "@/shared/ui/Button";
import { CommandLine, CopyButton } from "@/shared/ui/CommandLine";
import { cx } from "@/shared/ui/cx";
import { Table } from "@/shared/ui/table/Table";
import { submitPath } from "@/shared/url/pages";
import "./spec.css";

export function SpecView({ job }: { job: Job }) {
  const reference = useReference(job);
  const { hasAllFields: isAll, change } = useView();
  const barriers = useBarriers();
  // The API returns the spec as JSON; its type here is that of the form.
  const whole = job.spec as unknown as JsonObject;
  const text = sparseToml(sparseSpec(whole, job.set_fields));
  return (
    <div className="stack">
      {job.imported_from === null && <Changes job={job} />}
      <div className="toolbar">
        <h2>{job.imported_from === null ? "As submitted" : "As recorded"}</h2>
        <Button small aria-pressed={isAll} onClick={() => change({ hasAllFields: !isAll })}>
          {isAll ? "Only values that differ from the defaults" : "All fields"}
        </Button>
        <CopyButton text={text} label="Copy as TOML" />
        {job.imported_from === null && (
          <ButtonLink small barrier={barriers("jobs:write")} to={submitPath({ from: job.id })}>
            New job like this
          </ButtonLink>
        )}
      </div>
      <Sections job={job} isAll={isAll} />
      <CommandLine command={`${command("show", reference, "--json")} | jq .spec`} />
    </div>
  );
}

const COLUMNS = [
  { name: "field", label: "Field" },
  { name: "before", label: "Submitted" },
  { name: "after", label: "Effective" },
];

/** Overrides and resolved `auto` values of the pending launch, else of the newest attempt. */
function Changes({ job }: { job: Job }) {
  if (job.changes.length === 0) {
    return <p className="muted">The job runs as submitted; nothing is overridden.</p>;
  }
  return (
    <section>
      <h2 className="job-section row">
        {job.pending ? "The next attempt" : `Attempt ${job.attempt}`} runs with
      </h2>
      <Table label="Effective values" columns={COLUMNS} className="spec-changes">
        {job.changes.map(({ field, before, after }) => (
          <tr key={field}>
            <td>
              <code>{field}</code>
            </td>
            <td>{valueText(before)}</td>
            <td>
              <strong>{valueText(after)}</strong>
            </td>
          </tr>
        ))}
      </Table>
    </section>
  );
}

function Sections({ job, isAll }: { job: Job; isAll: boolean }) {
  const set = new Set(job.set_fields);
  return (
    <div className="spec-grid">
      {sectionsOf(job)
        .map(
          ([name, fields]) => [name, fields.filter(({ path }) => isAll || set.has(path))] as const,
        )
        .filter(([, fields]) => fields.length > 0)
        .map(([name, fields]) => (
          <section key={name} className="spec-section panel">
            <h3>{name}</h3>
            <dl className="facts">
              {fields.map(({ path, label, value }) => (
                <div key={path} className={cx(isAll && set.has(path) && "spec-own")}>
                  <dt>{label}</dt>
                  <dd>{valueText(value)}</dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
    </div>
  );
}

interface Field {
  /** Path as in `set_fields`. */
  path: string;
  label: string;
  value: unknown;
}

/** The sections with their fields; `name` and other fields outside sections come first. */
function sectionsOf({ spec }: Job): [name: string, fields: Field[]][] {
  const own: Field[] = [];
  const sections: [string, Field[]][] = [["job", own]];
  for (const [name, value] of Object.entries(spec)) {
    if (value === null || (spec.program && OF_THE_TRAINER.has(name))) continue;
    if (typeof value !== "object" || Array.isArray(value)) {
      own.push({ path: name, label: name, value });
      continue;
    }
    const fields = Object.entries(value);
    sections.push([
      name,
      fields.map(([label, inner]) => ({ path: `${name}.${label}`, label, value: inner })),
    ]);
  }
  return sections;
}
