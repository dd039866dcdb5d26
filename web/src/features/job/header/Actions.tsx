// What may be done to the job now, the next thing first.
import { useMutation } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import type { Job, Verb } from "@/shared/api/types";
import { useStream } from "@/shared/stream/useStream";
import { Button, type ButtonLook } from "@/shared/ui/Button";
import { InlineError } from "@/shared/ui/Notice";
import { saveCommand, VERBS } from "../actions/verbs";
import { postRequest } from "../api";
import { useView } from "../view";

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
          <SaveButton key={verb} job={job} />
        ) : (
          <Button
            key={verb}
            look={lookOf(verb, job)}
            title={VERBS[verb].means}
            aria-haspopup="dialog"
            onClick={() => view.set({ do: verb, checkpoint: null })}
          >
            {VERBS[verb].label}
          </Button>
        ),
      )}
    </div>
  );
}

const SAID_MILLISECONDS = 6_000;

/** Asks for a checkpoint, and says what the trainer answered. */
function SaveButton({ job }: { job: Job }) {
  const save = useMutation({ mutationFn: () => postRequest(job.id, "save") });
  const answer = useAnswer(job.id, save.data?.id);
  const { reset } = save;
  useEffect(() => {
    if (!answer) return;
    const timer = setTimeout(reset, SAID_MILLISECONDS);
    return () => clearTimeout(timer);
  }, [answer, reset]);
  const isWaiting = save.isPending || (save.isSuccess && !answer);
  return (
    <>
      <Button
        busy={isWaiting}
        title={`${VERBS.save.means}\n\n${saveCommand(job.id)}`}
        onClick={() => save.mutate()}
      >
        {isWaiting ? "Saving…" : VERBS.save.label}
      </Button>
      {answer && (
        <span role="status" className={answer.ok ? "job-said" : "job-said job-said-bad"}>
          {answer.message}
        </span>
      )}
      {save.isError && <InlineError error={save.error} className="job-said" />}
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
    event: ({ kind, job_id, data, message }) => {
      if (kind !== "request_answered" || job_id !== jobId) return;
      const answer = { ok: data.ok === true, message };
      setAnswers((known) => ({ ...known, [String(data.request_id)]: answer }));
    },
  });
  return requestId === undefined ? undefined : answers[requestId];
}
