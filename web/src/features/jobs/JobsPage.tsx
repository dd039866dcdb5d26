// The jobs table: one query, kept current by live events; the URL holds the filter.
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useCallback, useEffect, useMemo } from "react";
import { barrierSentence } from "@/shared/api/barriers";
import { EVERYONE, type JobFilter, jobsQuery, ownerOf, projectsQuery } from "@/shared/api/queries";
import { useBarriers, useIsShared, useSession } from "@/shared/api/useMay";
import { plural } from "@/shared/format/numbers";
import { MoreRows } from "@/shared/job/MoreRows";
import { Button, ButtonLink } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { cx } from "@/shared/ui/cx";
import { EmptyState, ErrorState } from "@/shared/ui/Notice";
import { JOBS } from "@/shared/url/pages";
import { type Change, usePageParams } from "@/shared/url/params";
import { FilterBar } from "./FilterBar";
import { isEmpty, listCommand, personOf, toggled, withDefaultOwner } from "./filter";
import { JobsTable, type Picking } from "./JobsTable";
import { Picked } from "./Picked";
import { useJobKeys } from "./useJobKeys";
import { usePicking } from "./usePicking";
import "./jobs.css";

export function JobsPage() {
  const person = personOf(useSession());
  const [filter, change] = useFilter(person);
  const showOwner = useCallback((owner: string) => change({ owner }), [change]);
  const toggleTag = useCallback(
    (tag: string) => change({ tags: toggled(filter.tags, tag) }),
    [change, filter],
  );
  const [picking, clear] = usePicking();
  const isPicked = picking.picked.length > 0;
  const barrier = useBarriers()("jobs:write");
  useJobKeys();
  return (
    <>
      <title>Jobs · Trainyard</title>
      <header className={cx("page-header", isPicked && "jobs-picked")}>
        <h1>Jobs</h1>
        <div className="page-actions row">
          {isPicked && <Picked picking={picking} onClear={clear} />}
          <ButtonLink look="primary" barrier={barrier} to="/jobs/new">
            New job
          </ButtonLink>
        </div>
      </header>
      <FilterBar filter={filter} person={person} onChange={change} />
      <JobList
        filter={filter}
        person={person}
        picking={picking}
        onTag={toggleTag}
        onOwner={showOwner}
        onClear={() => change({ ...NO_FILTER, owner: person === null ? "" : EVERYONE })}
      />
    </>
  );
}

const NO_FILTER: JobFilter = { states: [], tags: [], project: "", search: "", owner: "" };

/** The filter in the URL. A person's default becomes part of the URL, so a link shows the same jobs. */
function useFilter(person: string | null): [JobFilter, Change<JobFilter>] {
  const [found, change] = usePageParams(JOBS);
  const filter = useMemo(() => withDefaultOwner(found, person), [found, person]);
  useEffect(() => {
    if (filter.owner !== found.owner) change({ owner: filter.owner });
  }, [filter, found, change]);
  return [filter, change];
}

interface JobListProps {
  filter: JobFilter;
  /** Name of the reader, on a server of several people. */
  person: string | null;
  picking: Picking;
  onTag: (tag: string) => void;
  onOwner: (owner: string) => void;
  onClear: () => void;
}

function JobList({ filter, person, picking, onTag, onOwner, onClear }: JobListProps) {
  const isShared = useIsShared();
  // The rows of the previous filter stay while the new ones are read.
  const list = useInfiniteQuery({ ...jobsQuery(filter), placeholderData: (last) => last });
  const { data: projects } = useQuery(projectsQuery);
  if (list.isError && !list.data) {
    return <ErrorState error={list.error} onRetry={() => void list.refetch()} />;
  }
  const jobs = list.data?.pages.flatMap((page) => page.items);
  if (jobs?.length === 0 && !list.isPlaceholderData) {
    if (isEmpty(filter)) return <FirstJob />;
    const isOwn = isEmpty({ ...filter, owner: "" }) && ownerOf(filter) === person;
    return isOwn ? <NoOwnJob onAll={onClear} /> : <NoMatch onClear={onClear} />;
  }
  return (
    <>
      <JobsTable
        jobs={jobs}
        isOld={list.isPlaceholderData}
        hasProjects={projects !== undefined && projects.length > 1}
        picking={picking}
        hasOwners={isShared}
        onTag={onTag}
        onOwner={onOwner}
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
      <CommandLine command={listCommand(filter, person)} label="Lists the same jobs" />
    </>
  );
}

/** No job is visible: the way to the first one, or to a role that may submit one. */
function FirstJob() {
  const isShared = useIsShared();
  const barrier = useBarriers()("jobs:write");
  if (barrier) {
    return (
      <EmptyState title="No job in the projects you see">
        <NeedsRole barrier={barrier} />
        <ButtonLink to="/projects">Your projects</ButtonLink>
      </EmptyState>
    );
  }
  return (
    <EmptyState title={isShared ? "No job in the projects you see" : "No job yet"}>
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

function NeedsRole({ barrier }: { barrier: string }) {
  return <p>{barrierSentence(barrier, "A new job")} A maintainer of a project can add you.</p>;
}

function NoOwnJob({ onAll }: { onAll: () => void }) {
  const barrier = useBarriers()("jobs:write");
  return (
    <EmptyState title="You have no jobs in the projects you see">
      {barrier ? (
        <NeedsRole barrier={barrier} />
      ) : (
        <p>A job that you submit appears here, and the jobs of all people under “everyone”.</p>
      )}
      <div className="row notice-actions">
        <Button onClick={onAll}>Show the jobs of everyone</Button>
        <ButtonLink to="/projects">Your projects</ButtonLink>
      </div>
    </EmptyState>
  );
}

function NoMatch({ onClear }: { onClear: () => void }) {
  return (
    <EmptyState title="No job matches">
      <p>
        Remove a state, a tag, the project or the owner from the filter, or search for another name.
      </p>
      <Button onClick={onClear}>Clear the filter</Button>
    </EmptyState>
  );
}
