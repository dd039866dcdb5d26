// The rows of the queue.
import { memo } from "react";
import { Link } from "react-router";
import type { QueueEntry } from "@/shared/api/types";
import { useBarriers } from "@/shared/api/useMay";
import { count } from "@/shared/format/numbers";
import { duration, moment } from "@/shared/format/time";
import { PriorityButton } from "@/shared/job/Priority";
import { RelativeTime, useNow } from "@/shared/ui/RelativeTime";
import type { Column } from "@/shared/ui/table/Table";
import { type RowPlace, VirtualTable } from "@/shared/ui/table/VirtualTable";
import { startWords } from "./start";

const COLUMNS: readonly Column[] = [
  { name: "position", label: "Position", number: true, className: "queue-position" },
  { name: "name", label: "Job", className: "queue-name" },
  { name: "priority", label: "Priority", className: "queue-priority" },
  { name: "slots", label: "Slots", number: true, className: "queue-slots" },
  { name: "layout", label: "Layout", className: "queue-layout" },
  { name: "waits", label: "Waits", number: true, className: "queue-waits" },
  { name: "lasts", label: "Lasts", number: true, className: "queue-lasts" },
  { name: "start", label: "Expected start", number: true, className: "queue-start" },
];
const PROJECT: Column = { name: "project", label: "Project", className: "queue-project" };
const WITH_PROJECT = [...COLUMNS.slice(0, 2), PROJECT, ...COLUMNS.slice(2)];
const ROW_HEIGHT = 48;

interface QueueTableProps {
  entries: readonly QueueEntry[];
  /** Whether several projects exist: then their shares decide the order. */
  hasProjects: boolean;
}

export function QueueTable({ entries, hasProjects }: QueueTableProps) {
  const barriers = useBarriers();
  return (
    <VirtualTable
      label="Waiting jobs"
      columns={hasProjects ? WITH_PROJECT : COLUMNS}
      className="queue"
      items={entries}
      keyOf={keyOf}
      rowHeight={ROW_HEIGHT}
      row={(entry, place) => (
        <Row
          key={keyOf(entry)}
          entry={entry}
          place={place["data-index"]}
          measure={place.ref}
          hasProject={hasProjects}
          barrier={barriers("jobs:write", entry.project)}
        />
      )}
    />
  );
}

/** Return the key of a row: an entry of a hidden job has only a position. */
export function keyOf(entry: QueueEntry): string {
  return entry.job_id ?? `at ${entry.position}`;
}

interface RowProps {
  entry: QueueEntry;
  /** Its index among all rows. */
  place: number;
  measure: RowPlace["ref"];
  /** Whether its project is shown. */
  hasProject: boolean;
  /** Why the caller may not change the job. */
  barrier: string | null;
}

const Row = memo(function Row({ entry, place, measure, hasProject, barrier }: RowProps) {
  const { job_id: id, name, reason, priority_words } = entry;
  return (
    <tr ref={measure} data-job={id ?? undefined} data-index={place} aria-rowindex={place + 2}>
      <td className="queue-position number">{count(entry.position)}</td>
      <td className="queue-name">
        {id === null ? (
          <span className="muted ellipsis">{name}</span>
        ) : (
          <Link className="queue-link ellipsis" to={`/jobs/${id}`} title={name}>
            {name}
          </Link>
        )}
        {reason && (
          <div className="faint ellipsis" title={reason}>
            {reason}
          </div>
        )}
      </td>
      {hasProject && (
        <td className="queue-project muted ellipsis" title={entry.project ?? undefined}>
          {entry.project}
        </td>
      )}
      <td className="queue-priority">
        {id !== null && (
          <PriorityButton
            job={{ id, name, priority_words, state: "queued" }}
            words={priority_words}
            barrier={barrier}
          />
        )}
      </td>
      <td className="queue-slots number">{count(entry.world_size)}</td>
      <td className="queue-layout muted ellipsis">{entry.layout}</td>
      <td className="queue-waits number">
        {entry.queued_at && <RelativeTime at={entry.queued_at} />}
      </td>
      <td className="queue-lasts number">{id !== null && duration(entry.lasts_seconds)}</td>
      <td className="queue-start number">{id !== null && <Start entry={entry} />}</td>
    </tr>
  );
});

function Start({ entry }: { entry: QueueEntry }) {
  const now = useNow();
  const { expected_start_at: at, unknown_because: why, backfilled_before: ahead } = entry;
  if (!at) {
    return (
      <span className="faint" title={why ?? undefined}>
        unknown
      </span>
    );
  }
  return (
    <>
      <time dateTime={at} title={moment(at)}>
        {startWords(at, now)}
      </time>
      {ahead && (
        <div className="faint ellipsis" title={`It ends before ${ahead} can start.`}>
          ahead of {ahead}
        </div>
      )}
    </>
  );
}
