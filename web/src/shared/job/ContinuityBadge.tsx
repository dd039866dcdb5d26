// Whether an attempt continues exactly from its checkpoint; the checks open below.
import type { Attempt } from "@/shared/api/types";
import { grouped } from "@/shared/format/grouped";
import { count, plural } from "@/shared/format/numbers";
import { Popover } from "@/shared/ui/Popover";
import { Table } from "@/shared/ui/table/Table";
import { checkpointWords } from "./reference";

type Check = NonNullable<Attempt["continuity"]>["checks"][number];

const NAMES: Record<Check["name"], string> = {
  sequences: "Sequences consumed",
  tokens: "Tokens trained on",
  lr: "Learning rate",
  data_digest: "Data digest",
  loss: "Loss",
  code: "Code of the model",
};

const COLUMNS = [
  { name: "check", label: "Check" },
  { name: "expected", label: "Expected" },
  { name: "got", label: "Got" },
];

export function ContinuityBadge({ attempt }: { attempt: Attempt }) {
  const { continuity, parent_checkpoint_id: parent } = attempt;
  if (!continuity) return null;
  const { ok, exact, differs, checks, step, summary } = continuity;
  const broken = checks.filter((check) => !check.ok).length;
  const changed = differs.length;
  const held = exact ? "exact" : changed ? `continues, ${plural(changed, "change")}` : "continuous";
  return (
    <Popover
      label="Continuity"
      buttonClassName={`continuity badge badge-${!ok ? "bad" : changed ? "accent" : "ok"}`}
      button={
        <>
          <Glyph ok={ok} />
          {ok ? held : `${broken} of ${checks.length} differ`}
        </>
      }
    >
      <h3>
        {ok ? "Continues" : "Does not continue"} where{" "}
        {parent ? checkpointWords(parent) : "its checkpoint"} stood
      </h3>
      <p className="muted">
        Checked at step {count(step)}, the first after the resume{summary && `: ${summary}`}.
      </p>
      {changed > 0 && (
        <div className="continuity-changes">
          <p>Changed from the job that wrote the checkpoint:</p>
          <ul>
            {differs.map((change) => (
              <li key={change}>{change}</li>
            ))}
          </ul>
        </div>
      )}
      <Table label="Checks" columns={COLUMNS}>
        {checks.map(({ name, ok: held, expected, got }) => (
          <tr key={name} className={held ? undefined : "tone-bad"}>
            <th scope="row">
              <span className={held ? "tone-ok" : "tone-bad"}>
                <Glyph ok={held} />
              </span>{" "}
              {NAMES[name]}
            </th>
            <td>{grouped(expected)}</td>
            <td>{grouped(got)}</td>
          </tr>
        ))}
      </Table>
    </Popover>
  );
}

function Glyph({ ok }: { ok: boolean }) {
  return (
    <svg viewBox="0 0 12 12" width="12" height="12" role="img" aria-label={ok ? "held" : "differs"}>
      <path
        d={ok ? "M1.75 6.5 4.75 9.5 10.25 2.75" : "M6 1.5v5.5M6 9.2v1.4"}
        fill="none"
        stroke="currentColor"
        strokeWidth="1.9"
      />
    </svg>
  );
}
