// Times of the newest attempt's ranks in the last window: a bar each, and a table of the slowest.
import { queryOptions, useQuery } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import { keys } from "@/shared/api/queries";
import type { Job, Ranks as RanksView } from "@/shared/api/types";
import { count, fixed, percent } from "@/shared/format/numbers";
import { fine, moment } from "@/shared/format/time";
import { at } from "@/shared/job/api";
import { Badge } from "@/shared/ui/Badge";
import { cx } from "@/shared/ui/cx";
import { Absent, EmptyState } from "@/shared/ui/Notice";
import { Table } from "@/shared/ui/table/Table";
import { longest, ownSeconds, PARTS, type Span, slowest, spanWords } from "./ranks";
import "./ranks.css";

const LISTED = 8;

const ranksQuery = (id: string) =>
  queryOptions({
    queryKey: keys.jobPart(id, "ranks"),
    queryFn: ({ signal }) =>
      ask(api.GET("/api/v1/jobs/{job_id}/ranks", { params: at(id), signal })),
  });

export function Ranks({ job }: { job: Job }) {
  const ranks = useQuery(ranksQuery(job.id));
  if (!ranks.data) return <Absent query={ranks} lines={8} />;
  const { times, stragglers } = ranks.data;
  if (!times) {
    return (
      <EmptyState title={job.ended_at ? "No times of ranks" : "No times of ranks yet"}>
        <p>
          {job.world_size > 1
            ? "An attempt on several ranks compares them from its second logged step on."
            : "The job runs on one rank, so there is nothing to compare."}
        </p>
      </EmptyState>
    );
  }
  const slow = new Set(stragglers.filter((one) => one.gone_at === null).map((one) => one.rank));
  return (
    <div className="stack">
      <section className="panel ranks">
        <h2>
          Step {count(times.step)}{" "}
          <span className="muted">mean of a step over the last logged lines, by rank</span>
        </h2>
        <Bars spans={times.ranks} slow={slow} />
        <Legend />
      </section>
      <Slowest spans={times.ranks} slow={slow} />
      {stragglers.length > 0 && <History stragglers={stragglers} />}
    </div>
  );
}

function Bars({ spans, slow }: { spans: readonly Span[]; slow: ReadonlySet<number> }) {
  const height = longest(spans);
  return (
    <div className="ranks-bars" role="img" aria-label={`Times of ${count(spans.length)} ranks`}>
      {spans.map((span) => (
        <span
          key={span.first_rank}
          className={cx("ranks-bar", slow.has(span.rank) && "ranks-bar-slow")}
          title={`${spanWords(span)} · compute ${fine(span.compute_seconds)}, data ${fine(
            span.data_seconds,
          )}, waiting for others ${fine(span.wait_seconds)}`}
        >
          {PARTS.map(({ name, colour }) => (
            <span
              key={name}
              className={`part-${colour}`}
              style={{ height: `${(100 * span[name]) / height}%` }}
            />
          ))}
        </span>
      ))}
    </div>
  );
}

function Legend() {
  return (
    <ul className="ranks-legend">
      {PARTS.map(({ name, words, colour }) => (
        <li key={name} className="row">
          <span className={`legend-mark part-${colour}`} />
          {words}
        </li>
      ))}
    </ul>
  );
}

const COLUMNS = [
  { name: "rank", label: "Rank" },
  { name: "own", label: "Own time", number: true },
  { name: "factor", label: "Of the median", number: true },
  { name: "data", label: "Data", number: true },
  { name: "wait", label: "Waits for others", number: true },
];

function Slowest({ spans, slow }: { spans: readonly Span[]; slow: ReadonlySet<number> }) {
  return (
    <Table label="Slowest ranks" columns={COLUMNS}>
      {slowest(spans, LISTED).map(({ span, factor }) => (
        <tr key={span.first_rank}>
          <td title={spanWords(span)}>
            <span className="row">
              {count(span.rank)}
              {slow.has(span.rank) && <Badge tone="warn">straggler</Badge>}
            </span>
          </td>
          <td className="number">{fine(ownSeconds(span))}</td>
          <td className="number">{fixed(factor, 2)} x</td>
          <td className="number">{fine(span.data_seconds)}</td>
          <td className="number">{fine(span.wait_seconds)}</td>
        </tr>
      ))}
    </Table>
  );
}

const HISTORY = [
  { name: "rank", label: "Straggler" },
  { name: "slot", label: "Slot" },
  { name: "cost", label: "Cost", number: true },
  { name: "found", label: "Found" },
  { name: "gone", label: "Gone" },
];

function History({ stragglers }: Pick<RanksView, "stragglers">) {
  return (
    <Table label="Stragglers" columns={HISTORY}>
      {stragglers.map((one) => (
        <tr key={`${one.rank}-${one.step}`}>
          <td>
            rank {count(one.rank)} · {one.kind} {fixed(one.factor, 2)} x
          </td>
          <td>
            {one.node} · {one.slot}
          </td>
          <td className="number">{percent(one.share)}</td>
          <td>{moment(one.found_at)}</td>
          <td>{one.gone_at ? moment(one.gone_at) : "present"}</td>
        </tr>
      ))}
    </Table>
  );
}
