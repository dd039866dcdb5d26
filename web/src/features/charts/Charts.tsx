// The charts of a job: small multiples over one axis of steps, with one cursor.
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import type { Job, MetricCurve } from "@/shared/api/types";
import { plural } from "@/shared/format/numbers";
import { FIRST, formatOf } from "@/shared/format/series";
import { command } from "@/shared/format/shell";
import { attemptsQuery } from "@/shared/job/api";
import { useReference } from "@/shared/job/reference";
import { useView, type View } from "@/shared/job/view";
import { Button, ButtonLink } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { placeText, stretchText } from "@/shared/ui/chart/axis";
import { Chart } from "@/shared/ui/chart/Chart";
import { ChartToolbar } from "@/shared/ui/chart/ChartToolbar";
import { ChartCursor } from "@/shared/ui/chart/cursor";
import { type Curve, type Extent, type Reading, readingAt } from "@/shared/ui/chart/curve";
import { EmptyState, ErrorState } from "@/shared/ui/Notice";
import { comparePath } from "@/shared/url/pages";
import { drawnCurves, useLiveMetrics, useMetrics } from "./metrics";
import { type AttemptMark, labelled, markAt, marksOf, panelsOf } from "./panels";
import { Readout } from "./Readout";
import "./charts.css";

/** Panels shown before the first answer, so that the answer does not shift the page. */
const EXPECTED = ["train/loss", "train/grad_norm", "train/lr", "perf/tokens_per_second_per_device"];

export function Charts({ job }: { job: Job }) {
  const view = useView();
  const { range } = view;
  const attempts = useQuery(attemptsQuery(job.id));
  const marks = useMemo(() => marksOf(attempts.data ?? []), [attempts.data]);
  const [cursor] = useState(() => new ChartCursor());
  const reference = useReference(job);
  useLiveMetrics(job.id);
  const metrics = useMetrics(job.id, { names: FIRST, range });
  const names = metrics.data?.names;
  const panels = panelsOf(names ?? EXPECTED, isOwnScript(job));
  const own = panels.first.filter((name) => !FIRST.includes(name));
  const others = useMetrics(job.id, { names: own, range });
  if (metrics.isError && !metrics.data) {
    return <ErrorState error={metrics.error} onRetry={() => void metrics.refetch()} />;
  }
  if (names?.length === 0 || job.attempt === 0) return <NoPoints job={job} view={view} />;
  const isPending = metrics.isPending || (own.length > 0 && !others.data);
  const shared = { job, marks, range, view, cursor, isPending };
  const curves = [...(metrics.data?.curves ?? []), ...(others.data?.curves ?? [])];
  return (
    <div className="stack">
      <ChartToolbar view={view} axis="step" change={view.change}>
        <ButtonLink small to={comparePath([job.id])}>
          Compare with others
        </ButtonLink>
      </ChartToolbar>
      <PanelGrid {...shared} names={panels.first} curves={curves} />
      {panels.more.length > 0 && <MorePanels {...shared} names={panels.more} />}
      <CommandLine command={command("metrics", reference, "--csv")} label="Every point, as CSV" />
    </div>
  );
}

/** Whether a script names the series: a program of this server, or an imported run. */
function isOwnScript({ imported, effective_spec }: Job): boolean {
  return Boolean(imported || effective_spec.program);
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

/** The other series, read only when they are open. */
function MorePanels(props: PanelsProps) {
  const { names, view, job, range } = props;
  const isOpen = view.hasMoreCharts;
  const metrics = useMetrics(job.id, { names: isOpen ? names : [], range });
  return (
    <section>
      <Button
        look="quiet"
        aria-expanded={isOpen}
        onClick={() => view.change({ hasMoreCharts: !isOpen })}
      >
        {isOpen ? "Fewer charts" : plural(names.length, "more chart")}
      </Button>
      {isOpen && (
        <PanelGrid {...props} curves={metrics.data?.curves ?? []} isPending={!metrics.data} />
      )}
    </section>
  );
}

function PanelGrid({ names, curves, ...rest }: PanelsProps & { curves: readonly MetricCurve[] }) {
  const byName = useMemo(() => byNameOf(curves), [curves]);
  return (
    <div className="charts-grid" aria-busy={rest.isPending}>
      {names.map((name) => (
        <Panel key={name} name={name} curves={byName.get(name) ?? NO_CURVES} {...rest} />
      ))}
    </div>
  );
}

function byNameOf(curves: readonly MetricCurve[]): Map<string, MetricCurve[]> {
  const groups = new Map<string, MetricCurve[]>();
  for (const curve of curves) groups.set(curve.name, [...(groups.get(curve.name) ?? []), curve]);
  return groups;
}

const NO_CURVES: readonly MetricCurve[] = [];

interface PanelProps extends Omit<PanelsProps, "names"> {
  name: string;
  curves: readonly MetricCurve[];
}

function Panel({ name, curves, marks, range, view, cursor, isPending }: PanelProps) {
  const format = useMemo(() => formatOf(name), [name]);
  const { smoothing } = view;
  const shownMarks = useMemo(() => labelled(marks), [marks]);
  const drawn = useMemo(() => drawnCurves(curves, smoothing), [curves, smoothing]);
  const lineage = drawn.find(({ isBranch }) => !isBranch);
  return (
    <Chart
      title={name}
      label={`${name} over steps`}
      curves={drawn}
      axis="step"
      scale={view.isLog ? "log" : "linear"}
      range={range}
      onZoom={(to) => view.change({ range: to })}
      cursor={cursor}
      format={format}
      describe={(place) =>
        `${describePlace(lineage, marks, place)}${smoothing > 0 ? ", smoothed" : ""}`
      }
      isFull={view.isFull}
      marks={shownMarks}
      caption={lineage && <Readout curve={lineage} cursor={cursor} format={format} />}
      empty={isPending ? "" : "No points in these steps"}
    />
  );
}

/** Return the steps of the bucket at a place, and the attempt that trained them. */
function describePlace(
  lineage: Curve | undefined,
  marks: readonly AttemptMark[],
  place: number,
): string {
  const reading = lineage && readingAt(lineage, place);
  if (!reading) return placeText("step", place);
  const mark = markAt(marks, reading.step);
  return `${stepsText(reading)}${mark ? ` · attempt ${mark.attempt}, ${mark.label}` : ""}`;
}

function stepsText({ begin, x }: Reading): string {
  return begin === x ? placeText("step", x) : stretchText("step", [begin, x]);
}

function NoPoints({ job, view }: { job: Job; view: View }) {
  const words: Partial<Record<Job["state"], string>> = {
    queued: "The job waits for its slots. Points come with its first step.",
    starting: "The ranks are starting. Points come with the first step.",
    running: "The first step is running.",
  };
  const word = words[job.state];
  return (
    <EmptyState title={word ? "No points yet" : "No points"}>
      <p>{word ?? "The job ended before its first step. Its logs may say why."}</p>
      {!word && job.attempt > 0 && (
        <Button onClick={() => view.change({ tab: "logs" }, "push")}>Logs</Button>
      )}
    </EmptyState>
  );
}
