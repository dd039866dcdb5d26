// The committed checkpoints of a job, each with the way to go on from it.
import { useInfiniteQuery } from "@tanstack/react-query";
import type { CheckpointView, Job } from "@/shared/api/types";
import { bytes, count } from "@/shared/format/numbers";
import { command } from "@/shared/format/shell";
import { duration } from "@/shared/format/time";
import { Badge } from "@/shared/ui/Badge";
import { Button } from "@/shared/ui/Button";
import { CommandLine, CopyButton } from "@/shared/ui/CommandLine";
import { EmptyState, ErrorState } from "@/shared/ui/Notice";
import { Popover } from "@/shared/ui/Popover";
import { RelativeTime } from "@/shared/ui/RelativeTime";
import { SkeletonLines } from "@/shared/ui/Skeleton";
import { Table } from "@/shared/ui/Table";
import { goOnVerb } from "../actions/verbs";
import { checkpointsQuery } from "../api";
import { MoreRows } from "../MoreRows";
import { useReference } from "../reference";
import { useView } from "../view";

const COLUMNS = [
  { name: "step", label: "Step", number: true },
  { name: "attempt", label: "Attempt", number: true },
  { name: "kind", label: "Kind" },
  { name: "layout", label: "Written by" },
  { name: "size", label: "Size", number: true },
  { name: "save", label: "Save took", number: true },
  { name: "age", label: "Age", number: true },
  { name: "action", label: "Action", number: true },
];

export function Checkpoints({ job }: { job: Job }) {
  const found = useInfiniteQuery(checkpointsQuery(job.id));
  const reference = useReference(job);
  if (found.isError && !found.data) {
    return <ErrorState error={found.error} onRetry={() => void found.refetch()} />;
  }
  if (!found.data) return <SkeletonLines lines={10} />;
  const rows = found.data.pages.flatMap((page) => page.items);
  if (rows.length === 0) return <NoCheckpoints job={job} />;
  return (
    <div className="job-stack">
      <Table label="Checkpoints" columns={COLUMNS}>
        {rows.map((row) => (
          <Row key={row.id} job={job} row={row} />
        ))}
      </Table>
      <MoreRows query={found} words="Older checkpoints" />
      <CommandLine command={command("checkpoints", reference)} label="The same by command line" />
    </div>
  );
}

function Row({ job, row }: { job: Job; row: CheckpointView }) {
  const view = useView();
  const verb = goOnVerb(job);
  return (
    <tr className={row.on_lineage ? undefined : "job-row-off"}>
      <td className="number">
        <strong>{count(row.step)}</strong>
      </td>
      <td className="number">{row.attempt}</td>
      <td>
        {row.kind} {!row.on_lineage && <Badge tone="warn">abandoned branch</Badge>}
      </td>
      <td>{row.layout}</td>
      <td className="number">{bytes(row.size)}</td>
      <td className="number">{duration(row.save_seconds)}</td>
      <td className="number">
        <RelativeTime at={row.created_at} />
      </td>
      <td className="number">
        <Popover label="Place on storage" buttonClassName="job-link" button="Place">
          <div className="job-place">
            <code>{row.place}</code>
            <CopyButton text={row.place} />
          </div>
          <div className="job-place">
            <code>{row.id}</code>
            <CopyButton text={row.id} />
          </div>
          <p className="muted">{count(row.files)} files</p>
        </Popover>
        {verb && (
          <Button
            small
            className="checkpoint-resume"
            aria-label={`Resume from step ${row.step} of attempt ${row.attempt}`}
            onClick={() => view.set({ do: verb, checkpoint: row.id })}
          >
            Resume from here
          </Button>
        )}
      </td>
    </tr>
  );
}

function NoCheckpoints({ job }: { job: Job }) {
  const every = job.spec.checkpoint.interval_steps;
  return (
    <EmptyState title="No checkpoint yet">
      <p>
        {every > 0
          ? `One is saved every ${count(every)} steps, on a stop and at the end.`
          : "One is saved on request, on a stop and at the end."}
      </p>
    </EmptyState>
  );
}
