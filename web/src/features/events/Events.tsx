// The events of a job by day, the newest first.
import { useInfiniteQuery } from "@tanstack/react-query";
import type { EventView, Job } from "@/shared/api/types";
import { command } from "@/shared/format/shell";
import { moment } from "@/shared/format/time";
import { MoreRows } from "@/shared/job/MoreRows";
import { useReference } from "@/shared/job/reference";
import { Badge } from "@/shared/ui/Badge";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Absent } from "@/shared/ui/Notice";
import { type RowPlace, VirtualTable } from "@/shared/ui/table/VirtualTable";
import { eventsQuery } from "./api";
import { toneOf } from "./tone";
import "./events.css";

const COLUMNS = [
  { name: "time", label: "Time", width: 96 },
  { name: "kind", label: "Event", width: 180 },
  { name: "message", label: "What happened" },
  { name: "attempt", label: "Attempt", number: true, width: 84 },
  { name: "actor", label: "By", width: 132 },
];

const ROW_HEIGHT = 41;
const DAY = new Intl.DateTimeFormat("en-GB", { dateStyle: "full" });
const TIME = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium", hourCycle: "h23" });

export function Events({ job }: { job: Job }) {
  const found = useInfiniteQuery(eventsQuery(job.id));
  const reference = useReference(job);
  if (!found.data) return <Absent query={found} lines={12} />;
  const rows = found.data.pages.flatMap((page) => page.items);
  return (
    <div className="stack">
      <VirtualTable
        label="Events"
        columns={COLUMNS}
        className="events"
        items={withDays(rows)}
        keyOf={(item) => (typeof item === "string" ? item : String(item.id))}
        rowHeight={ROW_HEIGHT}
        row={(item, place) =>
          typeof item === "string" ? (
            <tr key={item} className="events-day" {...place}>
              <th colSpan={COLUMNS.length} scope="rowgroup">
                {item}
              </th>
            </tr>
          ) : (
            <Row key={item.id} event={item} place={place} />
          )
        }
      />
      <MoreRows query={found} />
      <CommandLine command={command("events", reference)} />
    </div>
  );
}

/** Return the events, with each day before its events. */
function withDays(events: readonly EventView[]): (EventView | string)[] {
  return events.flatMap((event, index) => {
    const day = DAY.format(new Date(event.at));
    const before = events[index - 1];
    return before && DAY.format(new Date(before.at)) === day ? [event] : [day, event];
  });
}

function Row({ event, place }: { event: EventView; place: RowPlace }) {
  return (
    <tr {...place}>
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
