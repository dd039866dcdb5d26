// The time of a job by category: one stacked bar, the ratios, and a row for each category.
import { queryOptions, useQuery } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import { keys } from "@/shared/api/queries";
import type { Goodput as GoodputView, Job } from "@/shared/api/types";
import { command } from "@/shared/format/shell";
import { duration } from "@/shared/format/time";
import { at } from "@/shared/job/api";
import { useReference } from "@/shared/job/reference";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Fact } from "@/shared/ui/Field";
import { Absent } from "@/shared/ui/Notice";
import { Table } from "@/shared/ui/table/Table";
import { Advice } from "./Advice";
import { Failures } from "./Failures";
import { type Part, partsOf, ratioWords, shareWords } from "./ledger";
import { SaveInterval } from "./SaveInterval";
import "./goodput.css";

/** Pause between two reads until the job ends: its time passes without events. */
const REFRESH_MILLISECONDS = 10_000;

const goodputQuery = (id: string) =>
  queryOptions({
    queryKey: keys.jobPart(id, "goodput"),
    queryFn: ({ signal }) =>
      ask(api.GET("/api/v1/jobs/{job_id}/goodput", { params: at(id), signal })),
  });

export function Goodput({ job }: { job: Job }) {
  const goodput = useQuery({
    ...goodputQuery(job.id),
    refetchInterval: job.ended_at ? false : REFRESH_MILLISECONDS,
  });
  const reference = useReference(job);
  if (!goodput.data) return <Absent query={goodput} lines={8} />;
  const parts = partsOf(goodput.data);
  return (
    <div className="stack">
      <section className="panel goodput">
        <h2>
          {duration(goodput.data.wall_milliseconds / 1000)}{" "}
          <span className="muted">
            from submission {job.ended_at ? "to the end" : "to now"}, by category
          </span>
        </h2>
        <Bar parts={parts} />
        <Ratios goodput={goodput.data} />
      </section>
      <div className="goodput-tables">
        <div className="stack">
          <Categories parts={parts} />
          <CommandLine command={command("goodput", reference)} />
        </div>
        <Advice job={job} />
      </div>
      <SaveInterval job={job} />
    </div>
  );
}

function Bar({ parts }: { parts: readonly Part[] }) {
  return (
    <div className="goodput-bar" aria-hidden="true">
      {parts.map(({ category, words, colour, share }) => (
        <span
          key={category}
          className={`goodput-part ${colour}`}
          style={{ flexGrow: share }}
          title={`${words}: ${shareWords(share)}`}
        />
      ))}
    </div>
  );
}

function Ratios({ goodput }: { goodput: GoodputView }) {
  const isUnknown = goodput.goodput === null && goodput.wall_milliseconds > 0;
  return (
    <>
      <dl className="goodput-ratios">
        <Fact name="Goodput">{ratioWords(goodput.goodput)}</Fact>
        <Fact name="Effective training time ratio">{ratioWords(goodput.ettr)}</Fact>
        <Failures of={goodput} />
      </dl>
      {isUnknown && (
        <p className="muted">
          No step has its time, which a program logs as <code>perf/step_seconds</code>.
        </p>
      )}
    </>
  );
}

const COLUMNS = [
  { name: "category", label: "Category" },
  { name: "time", label: "Time", number: true },
  { name: "share", label: "Share", number: true },
];

function Categories({ parts }: { parts: readonly Part[] }) {
  return (
    <Table label="Time by category" columns={COLUMNS}>
      {parts.map(({ category, words, colour, seconds, share }) => (
        <tr key={category}>
          <td>
            <span className="row">
              <span className={`legend-mark ${colour}`} />
              {words}
            </span>
          </td>
          <td className="number">{duration(seconds)}</td>
          <td className="number">{shareWords(share)}</td>
        </tr>
      ))}
    </Table>
  );
}
