// Problems of the job, each with the button for its remedy.
import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import type { Attempt, Failure, Job, NextAction } from "@/shared/api/types";
import { useBarriers } from "@/shared/api/useMay";
import { count, plural } from "@/shared/format/numbers";
import { command } from "@/shared/format/shell";
import { duration, moment } from "@/shared/format/time";
import { FailureFacts } from "@/shared/job/FailureFacts";
import { actionLabel, reasonWords } from "@/shared/job/failures";
import { useReference } from "@/shared/job/reference";
import { resumeVerb } from "@/shared/job/verbs";
import { useView } from "@/shared/job/view";
import { Button, ButtonLink } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { RelativeTime } from "@/shared/ui/RelativeTime";
import { submitPath } from "@/shared/url/pages";
import { queuePlaceQuery } from "./api";
import { RequestedNodes } from "./RequestedNodes";

const SHOWN_STRAGGLERS = 4;

export function Notices({ job }: { job: Job }) {
  const attempt = job.current_attempt;
  const silent = attempt?.nodes.filter((node) => node.unreachable_since !== null) ?? [];
  return (
    <>
      {silent.map((node) => (
        <Notice key={node.node} tone="warn" title={`${node.node} is unreachable`}>
          <p>
            No report for <RelativeTime at={node.unreachable_since ?? ""} />. Its ranks may still
            train: a new attempt starts when they are known to have ended, or after{" "}
            {duration(job.effective_spec.retry.node_lost_after_seconds)} without a report.
          </p>
        </Notice>
      ))}
      {attempt && attempt.stragglers.length > 0 && <StragglerNotice attempt={attempt} />}
      {attempt?.save_failed && <SaveNotice failed={attempt.save_failed} />}
      {attempt?.failure && attempt.state === "ended" && ["failed", "queued"].includes(job.state) ? (
        <FailureNotice job={job} attempt={attempt} />
      ) : (
        (job.reason || job.state === "queued") && <Reason job={job} />
      )}
    </>
  );
}

/** The stragglers of an attempt, the costliest first. */
function StragglerNotice({ attempt }: { attempt: Attempt }) {
  const view = useView();
  return (
    <Notice
      tone="warn"
      title={`${plural(attempt.stragglers.length, "rank")} slower than the others`}
    >
      <ul>
        {attempt.stragglers.slice(0, SHOWN_STRAGGLERS).map((one) => (
          <li key={one.rank}>{one.words}</li>
        ))}
      </ul>
      <div className="job-actions row">
        <Button onClick={() => view.change({ tab: "ranks" }, "push")}>All ranks</Button>
      </div>
    </Notice>
  );
}

/** Saves fail for a transient reason; shows the steps that would be lost if the attempt ended now. */
function SaveNotice({ failed }: { failed: NonNullable<Attempt["save_failed"]> }) {
  const isWaiting = failed.kind === "final" || failed.kind === "stop";
  return (
    <Notice tone="warn" title={`Saves fail (${plural(failed.tries, "try", "tries")})`}>
      <p>{failed.message}</p>
      <p>
        {plural(failed.step - failed.saved_step, "step")} since step {count(failed.saved_step)}{" "}
        would be lost. {isWaiting ? "The attempt waits for this save" : "Training continues"}. Next
        try: {moment(failed.next_try_at)}; last try: {moment(failed.give_up_at)}.
      </p>
    </Notice>
  );
}

/** The server's reason for a wait or an end; a newly queued job has none yet. */
function Reason({ job }: { job: Job }) {
  const isWaiting = job.state === "queued";
  return (
    <Notice tone={isWaiting ? "plain" : "warn"} title={isWaiting ? "Waiting" : undefined}>
      {job.reason && <p className="job-reason">{job.reason}</p>}
      {isWaiting && <RequestedNodes job={job} />}
      {isWaiting && <QueuePlace job={job} />}
      {isWaiting && job.attempt > 0 && (
        <p className="muted">It continues with {job.layout} once it is placed.</p>
      )}
    </Notice>
  );
}

/** Period of reads of the position, which changes without an event of this job. */
const PLACE_MILLISECONDS = 10_000;

/** The position in the queue, and the expected start or the reason why it is unknown. */
function QueuePlace({ job }: { job: Job }) {
  const place = useQuery({ ...queuePlaceQuery(job.id), refetchInterval: PLACE_MILLISECONDS });
  const entry = place.data?.entry;
  if (!entry) return null;
  const { position, expected_start_at: start, unknown_because: why } = entry;
  const isSaid = why !== null && job.reason?.includes(why); // by the notice itself
  return (
    <p className="muted">
      Position {count(position)} in the queue.{" "}
      {start ? `Expected start: ${moment(start)}.` : !isSaid && `No expected start: ${why}.`}
    </p>
  );
}

function FailureNotice({ job, attempt }: { job: Job; attempt: Attempt }) {
  const { failure } = attempt;
  if (!failure) return null;
  const isRetried = job.state === "queued";
  const reason = reasonWords(failure);
  return (
    <Notice
      tone={isRetried ? "warn" : "bad"}
      title={`Attempt ${attempt.number} failed: ${reason}${isRetried ? "; retrying" : ""}`}
    >
      <p>{failure.message}</p>
      <FailureFacts failure={failure} />
      {isRetried ? (
        <p className="job-reason">{job.reason}</p>
      ) : (
        <p className="job-remedy">{job.next_action?.text ?? failure.remedy.text}</p>
      )}
      <Remedies job={job} attempt={attempt} failure={failure} />
      {!isRetried && <ChangedResume job={job} />}
    </Notice>
  );
}

interface RemediesProps {
  job: Job;
  attempt: Attempt;
  failure: Failure;
}

function Remedies({ job, attempt, failure }: RemediesProps) {
  const view = useView();
  const barriers = useBarriers();
  const verb = resumeVerb(job);
  const { rank, traceback } = failure;
  const action = job.next_action;
  const log = { tab: "logs", attempt: attempt.number, rank, line: "error" } as const;
  return (
    <div className="job-actions row">
      {action && action.verb !== "resume" && <Changed job={job} action={action} />}
      {verb && (
        <Button
          barrier={barriers("jobs:write", job.project)}
          look={action?.verb === "resume" && !action.setting ? "primary" : "plain"}
          onClick={() =>
            view.change({ dialog: verb, checkpoint: null, aim: action?.aim ?? null }, "open")
          }
        >
          {action?.verb === "resume" ? actionLabel(action) : "Resume…"}
        </Button>
      )}
      {traceback && (
        <Button onClick={() => view.change({ tab: "attempts", attempt: attempt.number }, "push")}>
          Traceback
        </Button>
      )}
      {rank !== null && (
        <Button onClick={() => view.change(log, "push")}>Log of rank {rank}</Button>
      )}
      {action?.field && action.verb !== "submit" && (
        <ButtonLink
          barrier={barriers("jobs:write")}
          to={submitPath({ from: job.id, find: action.field })}
        >
          New job with changes
        </ButtonLink>
      )}
    </div>
  );
}

/** A resume with a setting that the dialog lacks. */
function ChangedResume({ job }: { job: Job }) {
  const reference = useReference(job);
  const { verb, setting } = job.next_action ?? {};
  if (verb !== "resume" || !setting) return null;
  return <CommandLine command={command("resume", reference, "--set", setting)} />;
}

/** The primary button after a failure that a plain resume would repeat. */
function Changed({ job, action }: { job: Job; action: NextAction }) {
  const view = useView();
  const barriers = useBarriers();
  const { checkpoint_id: fork, setting, field } = action;
  if (fork === null)
    return (
      <ButtonLink
        look="primary"
        barrier={barriers("jobs:write")}
        to={submitPath({ from: job.id, find: field })}
      >
        {actionLabel(action)}
      </ButtonLink>
    );
  return (
    <Button
      look="primary"
      barrier={barriers("jobs:write", job.project)}
      onClick={() => view.change({ tab: "checkpoints", fork, setting }, "open")}
    >
      {actionLabel(action)}
    </Button>
  );
}

interface NoticeProps {
  tone: "plain" | "warn" | "bad";
  title?: string;
  children: ReactNode;
}

function Notice({ tone, title, children }: NoticeProps) {
  return (
    <section className={`job-notice panel job-notice-${tone}`} aria-label={title ?? "Note"}>
      {title && <h2>{title}</h2>}
      {children}
    </section>
  );
}
