// What may be done to the job now, the next thing first.
import { useMutation } from "@tanstack/react-query";
import { Fragment, useEffect, useState } from "react";
import type { Job, Verb } from "@/shared/api/types";
import { useReference } from "@/shared/job/reference";
import { type Asked, REQUESTS, requestCommand, VERBS } from "@/shared/job/verbs";
import { useView } from "@/shared/job/view";
import { useStream } from "@/shared/stream/useStream";
import { Button, type ButtonLook } from "@/shared/ui/Button";
import { InlineError } from "@/shared/ui/Notice";
import { postRequest } from "./api";

/** After a failure the remedy beneath is the one that stands out. */
function lookOf(verb: Verb, job: Job): ButtonLook {
  if (verb === "cancel" || verb === "delete") return "quiet";
  return verb === "resume" && job.state !== "failed" ? "primary" : "plain";
}

export function Actions({ job }: { job: Job }) {
  const view = useView();
  return (
    <div className="job-actions">
      {job.verbs.map((verb) =>
        verb === "save" ? (
          <Fragment key={verb}>
            <RequestButton kind="save" job={job} />
            <RequestButton kind="profile" job={job} />
          </Fragment>
        ) : (
          <Button
            key={verb}
            look={lookOf(verb, job)}
            title={VERBS[verb].means}
            aria-haspopup="dialog"
            onClick={() => view.change({ dialog: verb, checkpoint: null })}
          >
            {VERBS[verb].label}
          </Button>
        ),
      )}
    </div>
  );
}

const SAID_MILLISECONDS = 6_000;

/** Asks something of the trainer, and says what it answered. */
function RequestButton({ kind, job }: { kind: Asked; job: Job }) {
  const ask = useMutation({ mutationFn: () => postRequest(job.id, kind) });
  const answer = useAnswer(job.id, ask.data?.id);
  const reference = useReference(job);
  const { label, means, busy } = REQUESTS[kind];
  const { reset } = ask;
  useEffect(() => {
    if (!answer) return;
    const timer = setTimeout(reset, SAID_MILLISECONDS);
    return () => clearTimeout(timer);
  }, [answer, reset]);
  const isWaiting = ask.isPending || (ask.isSuccess && !answer);
  return (
    <>
      <Button
        busy={isWaiting}
        title={`${means}\n\n${requestCommand(kind, reference)}`}
        onClick={() => ask.mutate()}
      >
        {isWaiting ? busy : label}
      </Button>
      {answer && (
        <span role="status" className={answer.ok ? "job-said" : "job-said job-said-bad"}>
          {answer.message}
        </span>
      )}
      {ask.isError && <InlineError error={ask.error} className="job-said" />}
    </>
  );
}

interface Answer {
  ok: boolean;
  message: string;
}

/** The answer to a request, once its event has come; it may come before the request's own reply. */
function useAnswer(jobId: string, requestId: string | undefined): Answer | undefined {
  const [answers, setAnswers] = useState<Record<string, Answer>>({});
  useStream({
    event: ({ kind, job_id, data }) => {
      if (kind !== "request_answered" || job_id !== jobId) return;
      const { ok, message, request_id } = data;
      setAnswers((known) => ({ ...known, [request_id]: { ok, message } }));
    },
  });
  return requestId === undefined ? undefined : answers[requestId];
}
