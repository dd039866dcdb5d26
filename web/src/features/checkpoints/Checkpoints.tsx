// The committed checkpoints of a job, each with its possible actions.
import { useInfiniteQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import type { CheckpointView, Job, Operation } from "@/shared/api/types";
import { useBarriers } from "@/shared/api/useMay";
import { bytes, count } from "@/shared/format/numbers";
import { command } from "@/shared/format/shell";
import { duration, moment } from "@/shared/format/time";
import { checkpointsQuery } from "@/shared/job/api";
import { MoreRows } from "@/shared/job/MoreRows";
import { isOwn, NEWEST, useReference } from "@/shared/job/reference";
import { resumeVerb } from "@/shared/job/verbs";
import { useView } from "@/shared/job/view";
import { Badge } from "@/shared/ui/Badge";
import { Button } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Absent, EmptyState } from "@/shared/ui/Notice";
import { RelativeTime } from "@/shared/ui/RelativeTime";
import { type RowPlace, VirtualTable } from "@/shared/ui/table/VirtualTable";
import { CheckpointDialog } from "./CheckpointDialog";
import { Details } from "./Details";
import { ExportDialog } from "./ExportDialog";
import { Exports } from "./Exports";
import { ForkDialog } from "./ForkDialog";
import {
  CHECKPOINT_VERBS,
  type CheckpointVerb,
  exportsOf,
  failedTries,
  toldOperation,
  verbsOf,
} from "./operations";
import { useOperations } from "./useOperations";
import { Verified } from "./Verified";
import { Written } from "./Written";
import "./checkpoints.css";

const COLUMNS = [
  { name: "step", label: "Step", number: true, width: 68 },
  { name: "attempt", label: "Attempt", number: true, width: 70 },
  { name: "kind", label: "Kind" },
  { name: "layout", label: "Layout", width: 98 },
  { name: "size", label: "Size", number: true, width: 80 },
  { name: "written", label: "Written", width: 168 },
  { name: "verified", label: "Verified", width: 132 },
  { name: "age", label: "Age", number: true, width: 60 },
  { name: "action", label: "Actions", number: true, width: 498 },
];

const ROW_HEIGHT = 48;

export function Checkpoints({ job }: { job: Job }) {
  const found = useInfiniteQuery(checkpointsQuery(job.id));
  const operations = useOperations(job.id);
  const [asked, setAsked] = useState<Asked | null>(null);
  const view = useView();
  const { fork, setting } = view;
  const barriers = useBarriers();
  const reference = useReference(job);
  const rows = found.data?.pages.flatMap((page) => page.items);
  useNewestFork(rows);
  if (!rows) return <Absent query={found} lines={10} />;
  if (rows.length === 0) return <NoCheckpoints job={job} />;
  return (
    <div className="stack">
      <VirtualTable
        label="Checkpoints"
        columns={COLUMNS}
        className="checkpoints"
        items={rows}
        keyOf={(row) => row.id}
        rowHeight={ROW_HEIGHT}
        row={(row, place) => (
          <Row
            key={row.id}
            place={place}
            job={job}
            row={row}
            operations={operations}
            onAsk={(verb) => setAsked({ row, verb })}
            onFork={() => view.change({ fork: row.id, setting: null }, "open")}
          />
        )}
      />
      <MoreRows query={found} />
      <CommandLine command={command("checkpoints", reference)} />
      {fork && isOwn(fork, job.id) && !barriers("jobs:write", job.project) && (
        <ForkDialog
          key={fork}
          job={job}
          checkpointId={fork}
          setting={setting}
          onClose={() => view.change({ fork: null, setting: null }, "close")}
        />
      )}
      {asked && <Asking asked={asked} job={job} onClose={() => setAsked(null)} />}
    </div>
  );
}

/** Replace `newest` in the URL by the checkpoint's id, so that a later checkpoint changes nothing. */
function useNewestFork(rows: readonly CheckpointView[] | undefined): void {
  const { fork, change } = useView();
  useEffect(() => {
    if (fork !== NEWEST || !rows) return;
    change({ fork: rows.find((row) => row.on_lineage && canFork(row))?.id ?? null });
  }, [fork, rows, change]);
}

function canFork(row: CheckpointView): boolean {
  return !row.deleting && row.verification?.ok !== false;
}

function Deletion({ row }: { row: CheckpointView }) {
  const failing = row.not_deleted;
  if (failing === null) return <Badge tone="warn">to be deleted</Badge>;
  return (
    <Badge tone="bad" title={failedTries(failing)}>
      not deleted
    </Badge>
  );
}

interface Asked {
  row: CheckpointView;
  verb: CheckpointVerb;
}

function Asking({ asked, job, onClose }: { asked: Asked; job: Job; onClose: () => void }) {
  const { row, verb } = asked;
  if (verb === "export") return <ExportDialog job={job} row={row} onClose={onClose} />;
  return <CheckpointDialog job={job} row={row} verb={verb} onClose={onClose} />;
}

interface RowProps {
  place: RowPlace;
  job: Job;
  row: CheckpointView;
  operations: readonly Operation[];
  onAsk: (verb: CheckpointVerb) => void;
  onFork: () => void;
}

function Row({ place, job, row, operations, onAsk, onFork }: RowProps) {
  const view = useView();
  const barriers = useBarriers();
  const barrier = barriers("jobs:write", job.project);
  const verb = resumeVerb(job);
  const operation = toldOperation(operations, row.id);
  const name = `step ${row.step} of attempt ${row.attempt}`;
  const isOfProgram = Boolean(job.spec.program); // a program's job has no model to fork
  return (
    <tr {...place} className={row.on_lineage && !row.deleting ? undefined : "job-row-off"}>
      <td className="number">
        <strong>{count(row.step)}</strong>
      </td>
      <td className="number">{row.attempt}</td>
      <td>
        {row.kind} {!row.on_lineage && <Badge tone="warn">abandoned branch</Badge>}{" "}
        {row.deleting && <Deletion row={row} />}{" "}
        {row.auto_export?.message && row.auto_export.ended_at !== null && (
          <Badge tone="bad" title={row.auto_export.message}>
            not exported
          </Badge>
        )}{" "}
        {row.pinned_at !== null && (
          <Badge tone="accent" title={`By ${row.pinned_by}, ${moment(row.pinned_at)}`}>
            pinned
          </Badge>
        )}
      </td>
      <td>
        {row.layout}
        {row.dtype !== null && (
          <div className="muted" title="Type of the stored weights">
            {row.dtype}
          </div>
        )}
      </td>
      <td className="number">{bytes(row.size)}</td>
      <td>
        <Written row={row} />
      </td>
      <td>
        <Verified row={row} operation={operation} barrier={barrier} />
      </td>
      <td className="number">
        <RelativeTime at={row.created_at} />
      </td>
      <td className="number checkpoint-actions">
        <Exports of={name} found={exportsOf(operations, row)} />
        {verb && !row.deleting && row.verification?.ok !== false && (
          <Button
            small
            barrier={barrier}
            aria-label={`Resume from ${name}`}
            onClick={() => view.change({ dialog: verb, checkpoint: row.id }, "open")}
          >
            Resume
          </Button>
        )}
        {!isOfProgram && canFork(row) && (
          <Button
            small
            look="quiet"
            barrier={barrier}
            aria-haspopup="dialog"
            aria-label={`Fork ${name}`}
            title="Starts a new job from it"
            onClick={onFork}
          >
            Fork
          </Button>
        )}
        {verbsOf(row, job).map((each) => (
          <Button
            key={each}
            small
            look="quiet"
            barrier={each === "delete" ? barriers("jobs:delete", job.project) : barrier}
            className={each === "pin" || each === "unpin" ? "checkpoint-pin" : undefined}
            disabled={operation?.ended_at === null && operation.kind === each}
            title={CHECKPOINT_VERBS[each].means}
            aria-haspopup="dialog"
            aria-label={`${CHECKPOINT_VERBS[each].label} ${name}`}
            onClick={() => onAsk(each)}
          >
            {CHECKPOINT_VERBS[each].label}
          </Button>
        ))}
        <Details row={row} />
      </td>
    </tr>
  );
}

function NoCheckpoints({ job }: { job: Job }) {
  if (job.spec.program) {
    return (
      <EmptyState title="No checkpoint yet">
        <p>The program saves one by run.checkpoint(step).</p>
      </EmptyState>
    );
  }
  // Before the first attempt an interval may still be `auto`.
  const { interval_steps: steps, interval_seconds: seconds } = job.effective_spec.checkpoint;
  const ways = [
    steps !== "auto" && steps > 0 && `every ${count(steps)} steps`,
    seconds !== "auto" && seconds > 0 && `every ${duration(seconds)}`,
    "on request",
    "on a stop",
  ].filter((way) => way !== false);
  return (
    <EmptyState title="No checkpoint yet">
      <p>One is saved {ways.join(", ")} and at the end.</p>
    </EmptyState>
  );
}
