// The rows of the jobs table; only changed rows are rendered again.
import { memo } from "react";
import { Link } from "react-router";
import { MAX_COMPARED } from "@/shared/api/queries";
import type { JobState, JobSummary } from "@/shared/api/types";
import { count, metric, NONE, numberOf, short } from "@/shared/format/numbers";
import { duration } from "@/shared/format/time";
import { reachedStep } from "@/shared/job/steps";
import { STATE_TONES, StateBadge } from "@/shared/ui/Badge";
import { cx } from "@/shared/ui/cx";
import { RelativeTime } from "@/shared/ui/RelativeTime";
import { Skeleton } from "@/shared/ui/Skeleton";
import { type Column, Table } from "@/shared/ui/table/Table";
import { type RowPlace, VirtualTable } from "@/shared/ui/table/VirtualTable";

const COLUMNS: readonly Column[] = [
  {
    name: "pick",
    label: <span className="visually-hidden">Compare</span>,
    className: "row-pick",
  },
  { name: "state", label: "State", className: "row-state" },
  { name: "name", label: "Name", className: "row-name" },
  { name: "layout", label: "Layout", className: "row-layout" },
  { name: "world", label: "World size", number: true, className: "row-world" },
  { name: "step", label: "Step", number: true, className: "row-step" },
  { name: "loss", label: "Loss", number: true, className: "row-loss" },
  { name: "rate", label: "Tokens/s", number: true, className: "row-rate" },
  { name: "left", label: "Time left", number: true, className: "row-left" },
  { name: "age", label: "Age", number: true, className: "row-age" },
];
const PROJECT: Column = { name: "project", label: "Project", className: "row-project" };
const COLUMNS_WITH_PROJECT = COLUMNS.toSpliced(3, 0, PROJECT);
const SKELETON_ROWS = 12;
const ROW_HEIGHT = 48;

interface JobsTableProps {
  /** Undefined while the first page is loading. */
  jobs: readonly JobSummary[] | undefined;
  /** Whether the rows are those of the previous filter. */
  isOld: boolean;
  /** Whether several projects exist. */
  hasProjects: boolean;
  picking: Picking;
  onTag: (tag: string) => void;
}

/** Jobs ticked for a comparison. */
export interface Picking {
  picked: readonly string[];
  isFull: boolean;
  toggle: (id: string) => void;
}

export function JobsTable({ jobs, isOld, hasProjects, picking, onTag }: JobsTableProps) {
  const { picked, isFull, toggle } = picking;
  if (!jobs) return <JobsSkeleton />;
  return (
    <VirtualTable
      label="Jobs"
      columns={hasProjects ? COLUMNS_WITH_PROJECT : COLUMNS}
      className={cx("jobs", isOld && "jobs-old")}
      items={jobs}
      keyOf={(job) => job.id}
      rowHeight={ROW_HEIGHT}
      row={(job, place) => {
        const isPicked = picked.includes(job.id);
        return (
          <JobRow
            key={job.id}
            job={job}
            place={place["data-index"]}
            measure={place.ref}
            hasProject={hasProjects}
            onTag={onTag}
            isPicked={isPicked}
            mayPick={isPicked || !isFull}
            onPick={toggle}
          />
        );
      }}
    />
  );
}

function JobsSkeleton() {
  return (
    <Table label="Jobs" columns={COLUMNS} className="jobs">
      {Array.from({ length: SKELETON_ROWS }, (_, row) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: the rows never change places
        <SkeletonRow key={row} />
      ))}
    </Table>
  );
}

interface JobRowProps {
  job: JobSummary;
  /** Its index among all rows. */
  place: number;
  measure: RowPlace["ref"];
  /** Whether its project is shown. */
  hasProject: boolean;
  isPicked: boolean;
  mayPick: boolean;
  onPick: (id: string) => void;
  onTag: (tag: string) => void;
}

const JobRow = memo(function JobRow(props: JobRowProps) {
  const { job, place, measure, hasProject, isPicked, mayPick, onPick, onTag } = props;
  const { progress } = job;
  return (
    <tr ref={measure} data-job={job.id} data-index={place} aria-rowindex={place + 2}>
      <td className="row-pick">
        <label className="row-check" title={mayPick ? "Compare" : `${MAX_COMPARED} jobs at most`}>
          <input
            type="checkbox"
            aria-label={`Compare ${job.name}`}
            checked={isPicked}
            disabled={!mayPick}
            onChange={() => onPick(job.id)}
          />
        </label>
      </td>
      <td className="row-state">
        <StateBadge state={job.state} />
      </td>
      <td className="row-name">
        <Link className="row-link ellipsis" to={`/jobs/${job.id}`} title={job.name}>
          {job.name}
        </Link>
        <div className="row-more small">
          {job.tags.map((tag) => (
            <button key={tag} type="button" className="row-tag" onClick={() => onTag(tag)}>
              {tag}
            </button>
          ))}
          {job.reason && (
            <span className="row-reason faint ellipsis" title={job.reason}>
              {job.reason}
            </span>
          )}
        </div>
      </td>
      {hasProject && (
        <td className="row-project muted ellipsis" title={job.project}>
          {job.project}
        </td>
      )}
      <td className="row-layout muted ellipsis">{job.layout}</td>
      <td className="row-world number">{count(job.world_size)}</td>
      <td className="row-step number">
        <Steps state={job.state} step={progress.step} steps={progress.steps} />
      </td>
      <td className={cx("row-loss number", isBroken(progress.loss) && "tone-bad")}>
        {metric(progress.loss)}
      </td>
      <td className="row-rate number">{short(numberOf(progress.tokens_per_second))}</td>
      <td className="row-left number">
        {job.state === "running" ? duration(progress.seconds_left) : NONE}
      </td>
      <td className="row-age number">
        <RelativeTime at={job.created_at} />
      </td>
    </tr>
  );
});

interface StepsProps {
  state: JobState;
  step: number;
  /** Null for a program that does not report it. */
  steps: number | null;
}

function Steps({ state, step, steps }: StepsProps) {
  const share = steps ? Math.min(1, step / steps) : 0;
  return (
    <>
      <span>{reachedStep({ step, steps }, state)}</span>
      {steps !== null && <span className="faint"> / {count(steps)}</span>}
      <span className="progress" aria-hidden="true">
        <span
          className={cx("progress-done", `tone-${STATE_TONES[state]}`)}
          style={{ transform: `scaleX(${share})` }}
        />
      </span>
    </>
  );
}

function isBroken(loss: unknown): boolean {
  const number = numberOf(loss);
  return number !== null && !Number.isFinite(number);
}

function SkeletonRow() {
  return (
    <tr>
      {COLUMNS.map((column) => (
        <td key={column.name} className={cx(column.number && "number", column.className)}>
          <Skeleton width={column.name === "name" ? "60%" : "70%"} />
        </td>
      ))}
    </tr>
  );
}
