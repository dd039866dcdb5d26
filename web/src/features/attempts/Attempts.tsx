// The attempts of a job as a lineage, and the details of one.
import { useQuery } from "@tanstack/react-query";
import type { Attempt, Job } from "@/shared/api/types";
import { count, NONE } from "@/shared/format/numbers";
import { command } from "@/shared/format/shell";
import { attemptsQuery } from "@/shared/job/api";
import { ContinuityBadge } from "@/shared/job/ContinuityBadge";
import { reasonWords } from "@/shared/job/failures";
import { originWords, useReference } from "@/shared/job/reference";
import { lastStep } from "@/shared/job/steps";
import { useView } from "@/shared/job/view";
import { StateBadge } from "@/shared/ui/Badge";
import { CommandLine } from "@/shared/ui/CommandLine";
import { cx } from "@/shared/ui/cx";
import { Absent, EmptyState } from "@/shared/ui/Notice";
import { Elapsed } from "@/shared/ui/RelativeTime";
import { Table } from "@/shared/ui/table/Table";
import { AttemptDetails } from "./AttemptDetails";
import { LineagePicture } from "./LineagePicture";
import { barsOf, farthest, upToDate } from "./lineage";
import "./attempts.css";

const ROW_HEIGHT = 36;
const CAUSES: Record<Attempt["cause"], string> = {
  submit: "submitted",
  resume: "resumed",
  resize: "resized",
  retry: "retried",
  import: "imported",
};

export function Attempts({ job }: { job: Job }) {
  const view = useView();
  const attempts = useQuery(attemptsQuery(job.id));
  const reference = useReference(job);
  if (!attempts.data) return <Absent query={attempts} lines={8} />;
  const wanted = view.attempt;
  const all = upToDate(attempts.data, job);
  const selected = all.find(({ number }) => number === wanted) ?? all[0];
  if (!selected) {
    return (
      <EmptyState title="No attempt yet">
        <p>{job.reason ?? "The job waits for its slots."}</p>
      </EmptyState>
    );
  }
  return (
    <div className="stack">
      <AttemptTable
        jobId={job.id}
        attempts={all}
        selected={selected.number}
        onSelect={(number) => view.change({ attempt: number })}
      />
      <AttemptDetails job={job} attempt={selected} />
      <CommandLine command={command("show", reference)} />
    </div>
  );
}

interface AttemptTableProps {
  jobId: string;
  attempts: readonly Attempt[];
  selected: number;
  onSelect: (number: number) => void;
}

function AttemptTable({ jobId, attempts, selected, onSelect }: AttemptTableProps) {
  const bars = barsOf(attempts, jobId);
  const columns = [
    { name: "attempt", label: "Attempt" },
    { name: "layout", label: "Layout" },
    { name: "steps", label: `Steps 0–${count(farthest(attempts))}` },
    { name: "from", label: "From" },
    { name: "reached", label: "Reached", number: true },
    { name: "outcome", label: "Outcome" },
    { name: "continuity", label: "Continuity" },
    { name: "took", label: "Took", number: true },
  ];
  return (
    <Table label="Attempts" columns={columns} className="attempts-table">
      {attempts.map((attempt, row) => (
        <tr
          key={attempt.number}
          style={{ height: ROW_HEIGHT }}
          className={cx(
            attempt.number === selected && "attempts-selected",
            !attempt.on_lineage && "attempts-off",
          )}
        >
          <td>
            <button
              type="button"
              className="attempts-pick link"
              aria-pressed={attempt.number === selected}
              onClick={() => onSelect(attempt.number)}
            >
              <strong>{attempt.number}</strong> {CAUSES[attempt.cause]}
            </button>
          </td>
          <td>{attempt.layout_name}</td>
          {row === 0 && (
            <td rowSpan={attempts.length} className="attempts-lineage">
              <LineagePicture bars={bars} rowHeight={ROW_HEIGHT} selected={selected} />
            </td>
          )}
          <td>
            {attempt.parent_checkpoint_id ? originWords(attempt.parent_checkpoint_id, jobId) : NONE}
          </td>
          <td className="number">{lastStep(attempt)}</td>
          <td>
            <StateBadge state={attempt.outcome ?? attempt.state} />{" "}
            {attempt.failure && (
              <span className="small tone-bad">{reasonWords(attempt.failure)}</span>
            )}
          </td>
          <td>{attempt.continuity ? <ContinuityBadge attempt={attempt} /> : NONE}</td>
          <td className="number">
            <Elapsed from={attempt.created_at} to={attempt.ended_at} />
          </td>
        </tr>
      ))}
    </Table>
  );
}
