// Compares several jobs: one chart for each series, with the curves of all jobs.
import { useCallback, useMemo, useState } from "react";
import { ApiError } from "@/shared/api/errors";
import { MAX_COMPARED } from "@/shared/api/queries";
import { formatOf } from "@/shared/format/series";
import { FindJob } from "@/shared/job/FindJob";
import { Button, ButtonLink } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { placeText } from "@/shared/ui/chart/axis";
import { Chart } from "@/shared/ui/chart/Chart";
import { ChartCursor } from "@/shared/ui/chart/cursor";
import { type Curve, extentOfCurves } from "@/shared/ui/chart/curve";
import { EmptyState, ErrorState, InlineError } from "@/shared/ui/Notice";
import type { CompareView } from "@/shared/url/pages";
import { compareCommand } from "./api";
import { curvesOf } from "./curves";
import { Differences } from "./Differences";
import { type Entry, Legend } from "./Legend";
import { Toolbar } from "./Toolbar";
import { useComparison, useLiveComparison } from "./useComparison";
import { type ChangeView, jobsOf, presentSlots, useCompareView, withJob, withoutJob } from "./view";
import "./compare.css";

/** Charts shown before the first answer, so that the answer does not shift the page. */
const EXPECTED = ["train/loss"];

export function ComparePage() {
  const [view, change] = useCompareView();
  const ids = jobsOf(view);
  const full = ids.length >= MAX_COMPARED ? `${MAX_COMPARED} jobs at most` : null;
  const add = (id: string) => change({ slots: withJob(view.slots, id) });
  return (
    <>
      <title>Compare · Trainyard</title>
      <header className="page-header">
        <h1>Compare jobs</h1>
        <div className="page-actions row">
          <FindJob verb="Add a job" chosen={ids} full={full} onFind={add} />
        </div>
      </header>
      {ids.length === 0 && <NoJobs />}
      {ids.length > MAX_COMPARED && <TooMany ids={ids} change={change} />}
      {ids.length > 0 && ids.length <= MAX_COMPARED && <Comparison view={view} change={change} />}
    </>
  );
}

function NoJobs() {
  return (
    <EmptyState title="No job chosen">
      <p>
        Add two to {MAX_COMPARED} jobs with the field above, or tick them in the list of jobs. Each
        chart then shows the curves of all of them.
      </p>
      <ButtonLink look="primary" to="/jobs">
        Choose from the list
      </ButtonLink>
    </EmptyState>
  );
}

function TooMany({ ids, change }: { ids: readonly string[]; change: ChangeView }) {
  return (
    <EmptyState title={`${ids.length} jobs are too many`}>
      <p>{MAX_COMPARED} is the most that one chart can show.</p>
      <Button onClick={() => change({ slots: ids.slice(0, MAX_COMPARED) })}>
        Compare the first {MAX_COMPARED}
      </Button>
    </EmptyState>
  );
}

function Comparison({ view, change }: { view: CompareView; change: ChangeView }) {
  const { ids, heads, curves, known, names, wanted, jobs } = useComparison(view);
  const [gone, setGone] = useState<string | null>(null);
  const remove = useCallback(
    // Read the present URL: several jobs may be removed together.
    (id: string) => change({ slots: withoutJob(presentSlots(), id) }),
    [change],
  );
  useLiveComparison(ids, known, (id) => {
    setGone(jobs.get(id)?.name ?? id);
    remove(id);
  });
  const [focus, setFocus] = useState<number | null>(null);
  const entries = useMemo(() => entriesOf(view.slots, jobs), [view.slots, jobs]);
  const { axis, smoothing } = view;
  const drawn = useMemo(() => {
    const there = entries.flatMap(({ slot, job }) => (job ? [{ slot, job }] : []));
    return new Map(names.map((name) => [name, curvesOf(there, name, { axis, smoothing })]));
  }, [entries, names, axis, smoothing]);
  // Deleted jobs must not stay in the comparison.
  const isGone = heads.error instanceof ApiError && heads.error.status === 404;
  if (heads.isError && (isGone || !heads.data)) {
    return <Refused error={heads.error} ids={ids} onRetry={heads.refetch} onRemove={remove} />;
  }
  const isPending = heads.isPending || (names.length > 0 && curves.isPending);
  return (
    <div className="stack">
      {gone && (
        <p className="muted" role="status">
          {gone} was deleted and removed from the comparison.
        </p>
      )}
      <Legend
        entries={entries}
        names={names}
        curves={drawn}
        isZoomed={view.range !== null}
        focus={focus}
        onFocus={setFocus}
        onRemove={remove}
      />
      {ids.length === 1 && <p className="muted">Add another job to compare this one with.</p>}
      <Toolbar view={view} change={change} known={[...known]} names={names} />
      {curves.isError && <InlineError error={curves.error} />}
      <Charts
        {...{ view, change, focus, isPending }}
        onFocus={setFocus}
        names={isPending && names.length === 0 ? (view.names ?? EXPECTED) : names}
        drawn={drawn}
      />
      <Differences entries={entries} />
      <CommandLine command={compareCommand(wanted)} label="These curves, as CSV" />
    </div>
  );
}

interface ChartsProps {
  view: CompareView;
  change: ChangeView;
  names: readonly string[];
  drawn: ReadonlyMap<string, readonly Curve[]>;
  focus: number | null;
  onFocus: (slot: number | null) => void;
  isPending: boolean;
}

const HEIGHT = { one: 420, several: 280 };

function Charts({ view, change, names, drawn, focus, onFocus, isPending }: ChartsProps) {
  const [cursor] = useState(() => new ChartCursor());
  const { axis, smoothing } = view;
  const whole = useMemo(() => extentOfCurves([...drawn.values()].flat()) ?? undefined, [drawn]);
  if (names.length === 0) {
    return (
      <EmptyState title={view.names?.length === 0 ? "No metric chosen" : "No points yet"}>
        <p>
          {view.names?.length === 0
            ? "Choose what to compare under Metrics."
            : "None of these jobs has points of these metrics yet."}
        </p>
        {view.names && <Button onClick={() => change({ names: null })}>The usual metrics</Button>}
      </EmptyState>
    );
  }
  return (
    <div className={names.length > 1 ? "compare-charts" : undefined} aria-busy={isPending}>
      {names.map((name) => (
        <Chart
          key={name}
          title={name}
          label={`${name} of the jobs compared`}
          curves={drawn.get(name) ?? NO_CURVES}
          axis={axis}
          scale={view.isLog ? "log" : "linear"}
          range={view.range}
          whole={whole}
          onZoom={(to) => change({ range: to })}
          cursor={cursor}
          format={formatOf(name)}
          describe={(place) => `${placeText(axis, place)}${smoothing > 0 ? ", smoothed" : ""}`}
          isFull={view.isFull}
          focus={focus}
          onFocus={onFocus}
          caption={
            <Button
              look="quiet"
              small
              aria-label={`Remove ${name}`}
              onClick={() => change({ names: names.filter((each) => each !== name) })}
            >
              ✕
            </Button>
          }
          height={names.length > 1 ? HEIGHT.several : HEIGHT.one}
          empty={isPending ? "" : emptyWords(view)}
        />
      ))}
    </div>
  );
}

const NO_CURVES: readonly Curve[] = [];

function emptyWords({ axis, range }: CompareView): string {
  if (range) return "No points in this range";
  return axis === "tokens" ? "No tokens are recorded" : "No points yet";
}

interface RefusedProps {
  error: unknown;
  ids: readonly string[];
  onRetry: () => unknown;
  onRemove: (id: string) => void;
}

/** A refusal, with a button to remove each missing job. */
function Refused({ error, ids, onRetry, onRemove }: RefusedProps) {
  const problems = error instanceof ApiError ? error.errors : [];
  const missing = ids.filter((id) => problems.some(({ detail }) => detail.includes(id)));
  return (
    <>
      <ErrorState error={error} onRetry={missing.length > 0 ? undefined : () => void onRetry()} />
      <div className="compare-missing row">
        {missing.map((id) => (
          <Button key={id} onClick={() => onRemove(id)}>
            Continue without {id}
          </Button>
        ))}
      </div>
    </>
  );
}

function entriesOf(
  slots: CompareView["slots"],
  jobs: ReadonlyMap<string, NonNullable<Entry["job"]>>,
): Entry[] {
  return slots.flatMap((id, slot) => (id === null ? [] : [{ slot, id, job: jobs.get(id) }]));
}
