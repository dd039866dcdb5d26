// What happened to a job, the newest first, by day.
import { useInfiniteQuery } from "@tanstack/react-query";
import { Fragment } from "react";
import type { EventView, Job } from "@/shared/api/types";
import { command } from "@/shared/format/shell";
import { moment } from "@/shared/format/time";
import { Badge, type Tone } from "@/shared/ui/Badge";
import { CommandLine } from "@/shared/ui/CommandLine";
import { ErrorState } from "@/shared/ui/Notice";
import { SkeletonLines } from "@/shared/ui/Skeleton";
import { Table } from "@/shared/ui/Table";
import { eventsQuery } from "../api";
import { MoreRows } from "../MoreRows";
import { useReference } from "../reference";

const COLUMNS = [
  { name: "time", label: "Time" },
  { name: "kind", label: "Event" },
  { name: "message", label: "What happened" },
  { name: "attempt", label: "Attempt", number: true },
  { name: "actor", label: "By" },
];

const DAY = new Intl.DateTimeFormat("en-GB", { dateStyle: "full" });
const TIME = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium", hourCycle: "h23" });

export function Events({ job }: { job: Job }) {
  const found = useInfiniteQuery(eventsQuery(job.id));
  const reference = useReference(job);
  if (found.isError && !found.data) {
    return <ErrorState error={found.error} onRetry={() => void found.refetch()} />;
  }
  if (!found.data) return <SkeletonLines lines={12} />;
  const rows = found.data.pages.flatMap((page) => page.items);
  return (
    <div className="job-stack">
      <Table label="Events" columns={COLUMNS} className="events">
        {rows.map((event, index) => {
          const day = DAY.format(new Date(event.at));
          const before = rows[index - 1];
          const isNewDay = !before || DAY.format(new Date(before.at)) !== day;
          return (
            <Fragment key={event.id}>
              {isNewDay && (
                <tr className="events-day">
                  <th colSpan={COLUMNS.length} scope="rowgroup">
                    {day}
                  </th>
                </tr>
              )}
              <Row event={event} />
            </Fragment>
          );
        })}
      </Table>
      <MoreRows query={found} words="Older events" />
      <CommandLine command={command("events", reference)} label="The same by command line" />
    </div>
  );
}

function Row({ event }: { event: EventView }) {
  return (
    <tr>
      <td className="events-time">
        <time dateTime={event.at} title={moment(event.at)}>
          {TIME.format(new Date(event.at))}
        </time>
      </td>
      <td>
        <Badge tone={toneOf(event)}>{event.kind.replaceAll("_", " ")}</Badge>
      </td>
      <td className="events-message">{event.message.replaceAll(`${event.job_id}.`, "")}</td>
      <td className="number">{event.attempt}</td>
      <td className="events-actor">{event.actor}</td>
    </tr>
  );
}

const TONES: Record<string, Tone> = {
  running: "accent",
  resumed: "accent",
  unreachable: "warn",
  line_skipped: "warn",
};

/** Only what went well or ill has a colour. */
function toneOf({ kind, data }: EventView): Tone {
  if (data.outcome === "failed" || data.state === "failed") return "bad";
  if (data.outcome === "succeeded" || data.state === "succeeded") return "ok";
  if (kind === "continuity_checked" || kind === "request_answered") return data.ok ? "ok" : "bad";
  return TONES[kind] ?? "neutral";
}
