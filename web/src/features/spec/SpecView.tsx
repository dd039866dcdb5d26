// The spec as submitted, and what the present attempt changes in it.
import { useQuery } from "@tanstack/react-query";
import { schemaQuery } from "@/shared/api/queries";
import type { Job } from "@/shared/api/types";
import { autoWords } from "@/shared/format/auto";
import { command } from "@/shared/format/shell";
import {
  differences,
  effectiveSpec,
  type Field,
  fieldsOf,
  type Spec,
} from "@/shared/job/differences";
import { useReference } from "@/shared/job/reference";
import { useView } from "@/shared/job/view";
import { Button, ButtonLink } from "@/shared/ui/Button";
import { CommandLine, CopyButton } from "@/shared/ui/CommandLine";
import { cx } from "@/shared/ui/cx";
import { Table } from "@/shared/ui/table/Table";
import { submitPath } from "@/shared/url/pages";
import { defaultsOf } from "./defaults";
import "./spec.css";

export function SpecView({ job }: { job: Job }) {
  const reference = useReference(job);
  const text = JSON.stringify(job.spec, null, 2);
  return (
    <div className="job-stack">
      <Changes job={job} />
      <Auto job={job} />
      <div className="spec-head">
        <h2>As submitted</h2>
        <CopyButton text={text} label="Copy as JSON" />
        <ButtonLink small to={submitPath({ from: job.id })}>
          New job like this
        </ButtonLink>
      </div>
      <Sections job={job} />
      <CommandLine
        command={`${command("show", reference, "--json")} | jq .spec`}
        label="The same by command line"
      />
    </div>
  );
}

const COLUMNS = [
  { name: "field", label: "Field" },
  { name: "before", label: "Submitted" },
  { name: "after", label: "Now" },
];

/** What the launch that is asked for, else the newest attempt, changes. */
function Changes({ job }: { job: Job }) {
  const launch = job.pending ?? job.current_attempt;
  const changes = launch ? differences(job.spec, effectiveSpec(job.spec, launch.overrides)) : [];
  if (changes.length === 0) {
    return <p className="muted">The job runs as it was submitted; nothing is overridden.</p>;
  }
  const who = job.pending ? "The next attempt" : `Attempt ${job.attempt}`;
  return (
    <section>
      <h2 className="job-section">{who} changes</h2>
      <Table label="Overrides" columns={COLUMNS}>
        {changes.map(({ field, before, after }) => (
          <tr key={field}>
            <td>
              <code>{field}</code>
            </td>
            <td>{before}</td>
            <td>
              <strong>{after}</strong>
            </td>
          </tr>
        ))}
      </Table>
    </section>
  );
}

/** What `auto` stands for in the newest attempt. */
function Auto({ job }: { job: Job }) {
  const attempt = job.current_attempt;
  const values = attempt ? autoWords(attempt.auto) : "";
  if (!attempt || values === "") return null;
  return (
    <p className="muted">
      On the {attempt.device} slots of attempt {attempt.number} <code>auto</code> stands for{" "}
      {values}.
    </p>
  );
}

function Sections({ job }: { job: Job }) {
  const view = useView();
  const schema = useQuery(schemaQuery);
  const isAll = view.hasAllFields;
  const defaults = schema.data ? defaultsOf(schema.data) : null;
  const sections = sectionsOf(job.spec)
    .map(([name, fields]): [string, Field[]] => [
      name,
      isAll || !defaults ? fields : fields.filter((field) => isOwn(field, defaults)),
    ])
    .filter(([, fields]) => fields.length > 0);
  return (
    <>
      <div>
        <Button small aria-pressed={isAll} onClick={() => view.change({ hasAllFields: !isAll })}>
          {isAll ? "Only what differs from the defaults" : "All fields"}
        </Button>
      </div>
      <div className="spec-grid">
        {sections.map(([name, fields]) => (
          <section key={name} className="spec-section">
            <h3>{name}</h3>
            <dl>
              {fields.map((field) => (
                <div
                  key={field[0]}
                  className={cx(isAll && defaults && isOwn(field, defaults) && "spec-own")}
                >
                  <dt>{field[0].slice(field[0].indexOf(".") + 1)}</dt>
                  <dd>{field[1]}</dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      </div>
    </>
  );
}

/** The sections with their fields; what belongs to none comes first. */
function sectionsOf(spec: Spec): [name: string, fields: Field[]][] {
  const sections = new Map<string, Field[]>([["job", []]]);
  for (const field of fieldsOf(spec)) {
    const [section = ""] = field[0].split(".", 1);
    const name = field[0].includes(".") ? section : "job";
    sections.set(name, [...(sections.get(name) ?? []), field]);
  }
  return [...sections];
}

/** Whether a field differs from its default. */
function isOwn([field, value]: Field, defaults: ReadonlyMap<string, string>): boolean {
  return defaults.get(field) !== value;
}
