// The use of all slots: the last days as stacked bars, the categories, and the jobs with the most lost steps.
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { api, ask } from "@/shared/api/client";
import { keys } from "@/shared/api/queries";
import type { ClusterGoodput } from "@/shared/api/types";
import { count, fixed, NONE } from "@/shared/format/numbers";
import { command } from "@/shared/format/shell";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Choice, Fact } from "@/shared/ui/Field";
import { Absent, EmptyState } from "@/shared/ui/Notice";
import { Table } from "@/shared/ui/table/Table";
import { GOODPUT, STRETCHES } from "@/shared/url/pages";
import { usePageParams } from "@/shared/url/params";
import { DayBars } from "./DayBars";
import { Failures } from "./Failures";
import { partsOfSlots, ratioWords, shareOf, shareWords, slotHours } from "./ledger";
import "./goodput.css";

/** The server computes it once a minute. */
const REFRESH_MILLISECONDS = 60_000;
const DAY_MILLISECONDS = 86_400_000;
const OPTIONS = STRETCHES.map((days) => [days, `${days} days`] as const);

export function ClusterGoodputPage() {
  const [{ days }, change] = usePageParams(GOODPUT);
  const first = dayOf(Date.now() - (days - 1) * DAY_MILLISECONDS);
  const goodput = useQuery({
    queryKey: [...keys.goodput, first],
    queryFn: ({ signal }) =>
      ask(api.GET("/api/v1/goodput", { params: { query: { from: first } }, signal })),
    refetchInterval: REFRESH_MILLISECONDS,
  });
  return (
    <>
      <title>Goodput · Trainyard</title>
      <header className="page-header">
        <h1>Goodput</h1>
        <div className="page-actions row">
          <Choice
            label="Last"
            value={days}
            onChange={(chosen) => change({ days: chosen })}
            options={OPTIONS}
          />
        </div>
      </header>
      {goodput.data ? (
        <Content goodput={goodput.data} first={first} />
      ) : (
        <Absent query={goodput} lines={12} />
      )}
    </>
  );
}

function Content({ goodput, first }: { goodput: ClusterGoodput; first: string }) {
  if (goodput.slot_milliseconds === 0) {
    return (
      <EmptyState title="No slot-time yet">
        <p>Slots count from the moment at which their node registers.</p>
        <Link to="/nodes">Nodes</Link>
      </EmptyState>
    );
  }
  const parts = partsOfSlots(goodput.categories, goodput.slot_milliseconds);
  const rate = goodput.failures > 0 ? goodput.failures_per_1000_node_days : null;
  return (
    <div className="stack">
      <section className="panel goodput">
        <h2>
          {slotHours(goodput.slot_milliseconds)}{" "}
          <span className="muted">of all slots, by day in UTC</span>
        </h2>
        <DayBars days={goodput.days} />
        <dl className="goodput-ratios">
          <Fact name="Goodput">{ratioWords(goodput.goodput)}</Fact>
          <Failures
            of={goodput}
            note={
              rate === null
                ? ""
                : `, ${rate < 100 ? fixed(rate, 2) : count(rate)} in 1,000 node-days`
            }
          />
        </dl>
      </section>
      <div className="goodput-tables">
        <Table label="Slot-time by category" columns={COLUMNS}>
          {parts.map(({ category, words, colour, seconds, share }) => (
            <tr key={category}>
              <td>
                <span className="row">
                  <span className={`legend-mark ${colour}`} />
                  {words}
                </span>
              </td>
              <td className="number">{slotHours(seconds * 1000)}</td>
              <td className="number">{shareWords(share)}</td>
            </tr>
          ))}
        </Table>
        {goodput.projects.length > 0 && <Projects projects={goodput.projects} />}
        {goodput.losing_jobs.length > 0 && <LosingJobs jobs={goodput.losing_jobs} />}
      </div>
      <CommandLine command={command("goodput", "--from", first)} />
    </div>
  );
}

const COLUMNS = [
  { name: "category", label: "Category" },
  { name: "time", label: "Slot-time", number: true },
  { name: "share", label: "Share", number: true },
];

const PROJECTS = [
  { name: "project", label: "Project" },
  { name: "held", label: "Held", number: true },
  { name: "productive", label: "Productive", number: true },
  { name: "lost", label: "Lost", number: true },
];

function Projects({ projects }: { projects: ClusterGoodput["projects"] }) {
  return (
    <Table label="Slot-time by project" columns={PROJECTS}>
      {projects.map(({ project, slot_milliseconds: held, categories }) => (
        <tr key={project}>
          <td>{project}</td>
          <td className="number">{slotHours(held)}</td>
          <td className="number">{shareWords(shareOf(categories, "productive", held))}</td>
          <td className="number">{shareWords(shareOf(categories, "lost", held))}</td>
        </tr>
      ))}
    </Table>
  );
}

const LOSING = [
  { name: "job", label: "Jobs with the most lost steps" },
  { name: "lost", label: "Lost", number: true },
  { name: "failures", label: "Failures", number: true },
  { name: "reason", label: "Usual reason" },
];

function LosingJobs({ jobs }: { jobs: ClusterGoodput["losing_jobs"] }) {
  return (
    <Table label="Jobs with the most lost steps" columns={LOSING}>
      {jobs.map((job) => (
        <tr key={job.job_id}>
          <td>
            <Link to={`/jobs/${job.job_id}?tab=goodput`}>{job.name}</Link>
          </td>
          <td className="number">{slotHours(job.lost_slot_milliseconds)}</td>
          <td className="number">{count(job.failures)}</td>
          <td>{job.reason?.replaceAll("_", " ") ?? NONE}</td>
        </tr>
      ))}
    </Table>
  );
}

/** `2026-11-21`, of UTC. */
function dayOf(time: number): string {
  return new Date(time).toISOString().slice(0, 10);
}
