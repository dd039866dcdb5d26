// The charts of a job: small multiples over one axis of steps, with one cursor.
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import type { Job, MetricLine } from "@/shared/api/types";
import { count } from "@/shared/format/numbers";
import { FIRST, formatOf } from "@/shared/format/series";
import { command } from "@/shared/format/shell";
import { Button, ButtonLink } from "@/shared/ui/Button";
import { Chart } from "@/shared/ui/Chart";
import { CommandLine } from "@/shared/ui/CommandLine";
import { ChartCursor } from "@/shared/ui/chart/cursor";
import { FullRange } from "@/shared/ui/chart/FullRange";
import type { Extent } from "@/shared/ui/chart/lines";
import { EmptyState, ErrorState } from "@/shared/ui/Notice";
import { attemptsQuery } from "../api";
import { useReference } from "../reference";
import { useView, type View } from "../view";
import { type AttemptMark, labelled, markAt, marksOf, panelsOf } from "./panels";
import { useLiveMetrics, useMetrics } from "./useMetrics";
import "./charts.css";

/** Panels that stand there before the first answer, so that nothing moves when it comes. */
const EXPECTED = ["train/loss", "train/grad_norm", "train/lr", "perf/tokens_per_second_per_device"];

export function Charts({ job }: { job: Job }) {
  const view = useView();
  const range = rangeIn(view);
  const attempts = useQuery(attemptsQuery(job.id));
  const marks = useMemo(() => marksOf(attempts.data ?? []), [attempts.data]);
  const [cursor] = useState(() => new ChartCursor());
  useLiveMetrics(job.id);
  const metrics = useMetrics(job.id, { names: FIRST, range });
  if (metrics.isError && !metrics.data) {
    return <ErrorState error={metrics.error} onRetry={() => void metrics.refetch()} />;
  }
  const names = metrics.data?.names;
  if (names?.length === 0 || job.attempt === 0) return <NoPoints job={job} view={view} />;
  const panels = panelsOf(names ?? EXPECTED);
  const shared = { job, marks, range, view, cursor, isPending: metrics.isPending };
  return (
    <>
      <Toolbar job={job} view={view} range={range} />
      <PanelGrid {...shared} names={panels.first} lines={metrics.data?.lines ?? []} />
      {panels.more.length > 0 && <MorePanels {...shared} names={panels.more} />}
    </>
  );
}

interface PanelsProps {
  job: Job;
  names: readonly string[];
  marks: readonly AttemptMark[];
  range: Extent | null;
  view: View;
  cursor: ChartCursor;
  isPending: boolean;
}

/** The other series, read only when they are shown. */
function MorePanels(props: PanelsProps) {
  const { names, view, job, range } = props;
  const isOpen = view.get("more") === "1";
  const metrics = useMetrics(job.id, { names: isOpen ? names : [], range });
  return (
    <section>
      <Button
        look="quiet"
        aria-expanded={isOpen}
        className="charts-more"
        onClick={() => view.set({ more: isOpen ? null : 1 })}
      >
        {isOpen ? "Fewer charts" : `${count(names.length)} more charts`}
      </Button>
      {isOpen && (
        <PanelGrid {...props} lines={metrics.data?.lines ?? []} isPending={!metrics.data} />
      )}
    </section>
  );
}

function PanelGrid({ names, lines, ...rest }: PanelsProps & { lines: readonly MetricLine[] }) {
  const byName = useMemo(() => byNameOf(lines), [lines]);
  return (
    <div className="charts-grid" aria-busy={rest.isPending}>
      {names.map((name) => (
        <Panel key={name} name={name} lines={byName.get(name) ?? NO_LINES} {...rest} />
      ))}
    </div>
  );
}

function byNameOf(lines: readonly MetricLine[]): Map<string, MetricLine[]> {
  const groups = new Map<string, MetricLine[]>();
  for (const line of lines) groups.set(line.name, [...(groups.get(line.name) ?? []), line]);
  return groups;
}

const NO_LINES: readonly MetricLine[] = [];

interface PanelProps extends Omit<PanelsProps, "names"> {
  name: string;
  lines: readonly MetricLine[];
}

function Panel({ name, lines, marks, range, view, cursor, isPending }: PanelProps) {
  const format = useMemo(() => formatOf(name), [name]);
  const drawn = useMemo(() => labelled(marks), [marks]);
  return (
    <Chart
      title={name}
      lines={lines}
      marks={drawn}
      range={range}
      onZoom={(to) => view.set({ from: to?.[0] ?? null, to: to?.[1] ?? null })}
      cursor={cursor}
      format={format}
      describe={(step) => describeAttempt(marks, step)}
      scale={view.get("y") === "log" ? "log" : "linear"}
      isFull={view.get("full") === "1"}
      empty={isPending ? "" : "No points in these steps"}
    />
  );
}

function describeAttempt(marks: readonly AttemptMark[], step: number): string | null {
  const mark = markAt(marks, step);
  return mark ? `attempt ${mark.attempt}, ${mark.label}` : null;
}

function Toolbar({ job, view, range }: { job: Job; view: View; range: Extent | null }) {
  const isLog = view.get("y") === "log";
  const isFull = view.get("full") === "1";
  const reference = useReference(job);
  return (
    <div className="charts-toolbar">
      <Button
        small
        aria-pressed={isLog}
        onClick={() => view.set({ y: isLog ? null : "log" })}
        title="Values on a logarithmic axis"
      >
        log y
      </Button>
      <FullRange isFull={isFull} onChange={(full) => view.set({ full: full ? 1 : null })} />
      {range ? (
        <>
          <span>
            steps {count(range[0])}–{count(range[1])}
          </span>
          <Button small onClick={() => view.set({ from: null, to: null })}>
            All steps
          </Button>
        </>
      ) : (
        <span className="muted charts-hint">Drag over a chart to zoom, double-click for all.</span>
      )}
      <ButtonLink small to={`/compare?jobs=${job.id}`}>
        Compare with others
      </ButtonLink>
      <div className="charts-command">
        <CommandLine command={command("metrics", reference, "--csv")} label="Every point, as CSV" />
      </div>
    </div>
  );
}

function NoPoints({ job, view }: { job: Job; view: View }) {
  const words: Partial<Record<Job["state"], string>> = {
    queued: "The job waits for its slots. Points come with its first step.",
    starting: "The ranks are starting. Points come with the first step.",
    running: "The first step is on its way.",
  };
  const word = words[job.state];
  return (
    <EmptyState title={word ? "No points yet" : "No points"}>
      <p>{word ?? "The job ended before its first step. Its logs may say why."}</p>
      {!word && job.attempt > 0 && (
        <Button onClick={() => view.set({ tab: "logs" }, "push")}>Logs</Button>
      )}
    </EmptyState>
  );
}

function rangeIn(view: View): Extent | null {
  const [from, to] = [view.number("from"), view.number("to")];
  return from !== null && to !== null && from < to ? [from, to] : null;
}
