// The head of a job page: facts, progress, actions and problems.
import { Link } from "react-router";
import { barrierSentence } from "@/shared/api/barriers";
import type { Job } from "@/shared/api/types";
import { useBarriers, useIsShared } from "@/shared/api/useMay";
import { count, plural } from "@/shared/format/numbers";
import { ContinuityBadge } from "@/shared/job/ContinuityBadge";
import { PriorityButton } from "@/shared/job/Priority";
import { checkpointWords } from "@/shared/job/reference";
import { Badge, StateBadge } from "@/shared/ui/Badge";
import { CodeWithCopy } from "@/shared/ui/CommandLine";
import { RelativeTime } from "@/shared/ui/RelativeTime";
import { ownerPath } from "@/shared/url/pages";
import { Actions } from "./Actions";
import { Notices } from "./Notices";
import { OwnerButton } from "./OwnerButton";
import { ProgressLine } from "./ProgressLine";

export function JobHeader({ job }: { job: Job }) {
  const attempt = job.current_attempt;
  return (
    <header className="job-header stack">
      <div className="job-head">
        <div className="job-title">
          <h1>{job.name}</h1>
          <StateBadge state={job.state} large />
          {attempt?.continuity && <ContinuityBadge attempt={attempt} />}
        </div>
        <Actions job={job} />
      </div>
      {job.imported ? <ImportedFacts job={job} imported={job.imported} /> : <JobFacts job={job} />}
      <ReadOnly job={job} />
      <ProgressLine job={job} />
      <Notices job={job} />
    </header>
  );
}

function JobFacts({ job }: { job: Job }) {
  const barrier = useBarriers()("jobs:write", job.project);
  const attempt = job.current_attempt;
  const shares = attempt?.nodes ?? [];
  const nodes = shares.filter(({ state }) => state !== "spare").map(({ node }) => node);
  const spares = shares.filter(({ state }) => state === "spare").map(({ node }) => node);
  const slots = plural(job.world_size, "slot");
  return (
    <ul className="job-facts" aria-label="About the job">
      {job.attempt > 0 && <li>attempt {job.attempt}</li>}
      {job.layout !== slots && <li>{job.layout}</li>}
      <li>
        {slots}
        {job.min_world_size !== null &&
          ` of ${count(job.min_world_size)} to ${count(job.max_world_size ?? job.world_size)}`}
      </li>
      {job.size_change && (
        <li>
          {job.size_change.world_size < job.size_change.before ? "shrunk" : "grew"} to{" "}
          {plural(job.size_change.world_size, "slot")},{" "}
          <RelativeTime at={job.size_change.at} isSentence />: {job.size_change.reason}
        </li>
      )}
      <WhatFollows job={job} />
      {nodes.length > 0 && (
        <li title={nodes.join(", ")}>
          on {nodes.length > 2 ? `${count(nodes.length)} nodes` : nodes.join(" and ")}
        </li>
      )}
      {spares.length > 0 && (
        <li title={spares.join(", ")}>{plural(spares.length, "spare node")}</li>
      )}
      <li>
        submitted <RelativeTime at={job.created_at} isSentence />
      </li>
      {job.forked_from && (
        <li title={`Loaded ${job.fork_parts?.join(", ")} of ${job.forked_from}`}>
          forked from{" "}
          <Link to={`/jobs/${job.forked_from.split(".")[0]}`}>
            {checkpointWords(job.forked_from)}
          </Link>
        </li>
      )}
      <li>
        {job.ended_at === null ? (
          <PriorityButton job={job} words={`priority ${job.priority_words}`} barrier={barrier} />
        ) : (
          `priority ${job.priority_words}`
        )}
      </li>
      <OwnerTagsAndId job={job} />
    </ul>
  );
}

/** The next attempt after the stop of a resize. */
function WhatFollows({ job }: { job: Job }) {
  if (job.state !== "stopping" || !job.pending) return null;
  const { dp_replicate, dp_shard, cp, tp, pp } = job.pending.layout;
  return <li>then resumes on {plural(dp_replicate * dp_shard * cp * tp * pp, "slot")}</li>;
}

/** The origin of an imported run, which has no slots, nodes or priority. */
function ImportedFacts({ job, imported }: { job: Job; imported: NonNullable<Job["imported"]> }) {
  const { run, received } = imported;
  return (
    <ul className="job-facts" aria-label="About the job">
      <li title={`Run ${run.run_id}`}>imported from {run.tool}</li>
      <li>
        {received < run.points ? `${count(received)} of ` : ""}
        {plural(run.points, "point")}
      </li>
      <li>
        imported <RelativeTime at={job.created_at} isSentence />
      </li>
      {job.started_at && (
        <li>
          ran <RelativeTime at={job.started_at} isSentence />
        </li>
      )}
      <OwnerTagsAndId job={job} />
    </ul>
  );
}

/** Why the actions are disabled: a touch screen shows no titles. */
function ReadOnly({ job }: { job: Job }) {
  const barrier = useBarriers()("jobs:write", job.project);
  if (!barrier) return null;
  return (
    <p className="muted small">
      You can only read this job. {barrierSentence(barrier, "A change")}
    </p>
  );
}

/** The owner, where several people share the server; then the tags and the id. */
function OwnerTagsAndId({ job }: { job: Job }) {
  const isShared = useIsShared();
  return (
    <>
      {isShared && job.owner !== null && (
        <li>
          owner{" "}
          <Link to={ownerPath(job.owner)} title={`Jobs of ${job.owner}`}>
            {job.owner}
          </Link>{" "}
          <OwnerButton job={job} />
        </li>
      )}
      {job.tags.length > 0 && (
        <li className="job-tags">
          {job.tags.map((tag) => (
            <Badge key={tag}>{tag}</Badge>
          ))}
        </li>
      )}
      <li className="job-id">
        <CodeWithCopy text={job.id} label="Copy id" />
      </li>
    </>
  );
}
