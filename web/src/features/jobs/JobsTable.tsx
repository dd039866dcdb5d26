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
const OWNER: Column = { name: "owner", label: "Owner", className: "row-owner" };
const SKELETON_ROWS = 12;
const ROW_HEIGHT = 48;

interface JobsTableProps {
  /** Undefined while the first page is loading. */
  jobs: readonly JobSummary[] | undefined;
  /** Whether the rows are those of the previous filter. */
  isOld: boolean;
  /** Whether several projects exist. */
  hasProjects: boolean;
  /** Whether several people share the server. */
  hasOwners: boolean;
  picking: Picking;
  onTag: (tag: string) => void;
  onOwner: (owner: string) => void;
}

/** Jobs ticked for a comparison. */
export interface Picking {
  picked: readonly string[];
  isFull: boolean;
  toggle: (id: string) => void;
}

export function JobsTable(props: JobsTableProps) {
  const { jobs, isOld, hasProjects, hasOwners, picking, onTag, onOwner } = props;
  const { picked, isFull, toggle } = picking;
  const columns = COLUMNS.toSpliced(
    3,
    0,
    ...(hasProjects ? [PROJECT] : []),
    ...(hasOwners ? [OWNER] : []),
  );
  const className = cx("jobs", hasOwners && "jobs-owned", isOld && "jobs-old");
  if (!jobs) return <JobsSkeleton columns={columns} className={className} />;
  return (
    <VirtualTable
      label="Jobs"
      columns={columns}
      className={className}
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
            hasOwner={hasOwners}
            onTag={onTag}
            onOwner={onOwner}
            isPicked={isPicked}
            mayPick={isPicked || !isFull}
            onPick={toggle}
          />
        );
      }}
    />
  );
}

interface SkeletonProps {
  columns: readonly Column[];
  className: string;
}

function JobsSkeleton({ columns, className }: SkeletonProps) {
  return (
    <Table label="Jobs" columns={columns} className={className}>
      {Array.from({ length: SKELETON_ROWS }, (_, row) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: the rows never change places
        <SkeletonRow key={row} columns={columns} />
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
  /** Whether its owner is shown. */
  hasOwner: boolean;
  isPicked: boolean;
  mayPick: boolean;
  onPick: (id: string) => void;
  onTag: (tag: string) => void;
  onOwner: (owner: string) => void;
}

const JobRow = memo(function JobRow(props: JobRowProps) {
  const { job, place, measure, hasProject, hasOwner, isPicked, mayPick, onPick, onTag } = props;
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
      {hasOwner && <OwnerCell owner={job.owner} onOwner={props.onOwner} />}
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

interface OwnerCellProps {
  /** Null from an older server. */
  owner: string | null;
  onOwner: (owner: string) => void;
}

function OwnerCell({ owner, onOwner }: OwnerCellProps) {
  return (
    <td className="row-owner">
      {owner === null ? (
        NONE
      ) : (
        <button
          type="button"
          className="row-owner-name muted ellipsis"
          title={`Show the jobs of ${owner}`}
          onClick={() => onOwner(owner)}
        >
          {owner}
        </button>
      )}
    </td>
  );
}

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

function SkeletonRow({ columns }: { columns: readonly Column[] }) {
  return (
    <tr>
      {columns.map((column) => (
        <td key={column.name} className={cx(column.number && "number", column.className)}>
          <Skeleton width={column.name === "name" ? "60%" : "70%"} />
        </td>
      ))}
    </tr>
  );
}
