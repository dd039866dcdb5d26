// The jobs table: one query, kept current by live events; the URL holds the filter.
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useCallback } from "react";
import { type JobFilter, jobsQuery, projectsQuery } from "@/shared/api/queries";
import { plural } from "@/shared/format/numbers";
import { MoreRows } from "@/shared/job/MoreRows";
import { Button, ButtonLink } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { cx } from "@/shared/ui/cx";
import { EmptyState, ErrorState } from "@/shared/ui/Notice";
import { JOBS } from "@/shared/url/pages";
import { usePageParams } from "@/shared/url/params";
import { FilterBar } from "./FilterBar";
import { isEmpty, listCommand, toggled } from "./filter";
import { JobsTable, type Picking } from "./JobsTable";
import { Picked } from "./Picked";
import { useJobKeys } from "./useJobKeys";
import { usePicking } from "./usePicking";
import "./jobs.css";

export function JobsPage() {
  const [filter, change] = usePageParams(JOBS);
  const toggleTag = useCallback(
    (tag: string) => change({ tags: toggled(filter.tags, tag) }),
    [change, filter],
  );
  const [picking, clear] = usePicking();
  const isPicked = picking.picked.length > 0;
  useJobKeys();
  return (
    <>
      <title>Jobs · Trainyard</title>
      <header className={cx("page-header", isPicked && "jobs-picked")}>
        <h1>Jobs</h1>
        <div className="page-actions row">
          {isPicked && <Picked picking={picking} onClear={clear} />}
          <ButtonLink look="primary" to="/jobs/new">
            New job
          </ButtonLink>
        </div>
      </header>
      <FilterBar filter={filter} onChange={change} />
      <JobList
        filter={filter}
        picking={picking}
        onTag={toggleTag}
        onClear={() => change(NO_FILTER)}
      />
    </>
  );
}

const NO_FILTER: JobFilter = { states: [], tags: [], project: "", search: "" };

interface JobListProps {
  filter: JobFilter;
  picking: Picking;
  onTag: (tag: string) => void;
  onClear: () => void;
}

function JobList({ filter, picking, onTag, onClear }: JobListProps) {
  // The rows of the previous filter stay while the new ones are read.
  const list = useInfiniteQuery({ ...jobsQuery(filter), placeholderData: (last) => last });
  const { data: projects } = useQuery(projectsQuery);
  if (list.isError && !list.data) {
    return <ErrorState error={list.error} onRetry={() => void list.refetch()} />;
  }
  const jobs = list.data?.pages.flatMap((page) => page.items);
  if (jobs?.length === 0 && !list.isPlaceholderData) {
    return isEmpty(filter) ? <FirstJob /> : <NoMatch onClear={onClear} />;
  }
  return (
    <>
      <JobsTable
        jobs={jobs}
        isOld={list.isPlaceholderData}
        hasProjects={projects !== undefined && projects.length > 1}
        picking={picking}
        onTag={onTag}
      />
      <footer className="jobs-footer">
        {jobs && (
          <span>
            {plural(jobs.length, "job")}
            {list.hasNextPage ? " so far" : ""}
          </span>
        )}
        <MoreRows query={list} />
      </footer>
      <CommandLine command={listCommand(filter)} label="Lists the same jobs" />
    </>
  );
}

function FirstJob() {
  return (
    <EmptyState title="No job yet">
      <p>
        Every field of a job has a default, so this trains a small model on the source of Python’s
        standard library in about a minute:
      </p>
      <CommandLine command="trainyard submit --set name=first --set training.steps=200" />
      <ButtonLink look="primary" to="/jobs/new">
        Or fill in the form
      </ButtonLink>
    </EmptyState>
  );
}

function NoMatch({ onClear }: { onClear: () => void }) {
  return (
    <EmptyState title="No job matches">
      <p>Remove a state, a tag or the project from the filter, or search for another name.</p>
      <Button onClick={onClear}>Clear the filter</Button>
    </EmptyState>
  );
}
