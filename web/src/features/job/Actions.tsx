// Buttons for the possible actions on the job, the likeliest first, and the dialog that they open.
import { useMutation } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { barrierSentence } from "@/shared/api/barriers";
import type { Job, Permission, Verb } from "@/shared/api/types";
import { useBarriers } from "@/shared/api/useMay";
import { command } from "@/shared/format/shell";
import { NEWEST, useReference } from "@/shared/job/reference";
import { type Asked, type DialogVerb, isDialogVerb, REQUESTS, VERBS } from "@/shared/job/verbs";
import { useView } from "@/shared/job/view";
import { useStream } from "@/shared/stream/useStream";
import { Button, type ButtonLook } from "@/shared/ui/Button";
import { InlineError } from "@/shared/ui/Notice";
import { postRequest } from "./api";

/** After a failure the button of the remedy is the primary one; a finished job needs none. */
function lookOf(verb: Verb, job: Job): ButtonLook {
  if (verb === "cancel" || verb === "delete") return "quiet";
  const isNext = job.state === "stopped" || job.state === "cancelled";
  return verb === "resume" && isNext ? "primary" : "plain";
}

/** Whether the job can be forked: a program's checkpoint is useless to another job. */
function canFork(job: Job): boolean {
  return job.progress.step > 0 && !job.imported && !job.spec.program;
}

/** Return the permission that a verb needs. */
function needOf(verb: Verb): Permission {
  return verb === "delete" ? "jobs:delete" : "jobs:write";
}

export function Actions({ job }: { job: Job }) {
  const view = useView();
  const barrier = useBarriers()("jobs:write", job.project);
  const isLast = (verb: Verb) => verb === "cancel" || verb === "delete";
  return (
    <div className="job-actions row">
      {job.verbs
        .filter((verb) => !isLast(verb))
        .map((verb) => (
          <VerbButton key={verb} verb={verb} job={job} />
        ))}
      {canFork(job) && (
        <Button
          barrier={barrier}
          title="Starts a new job with changed settings from a checkpoint."
          onClick={() => view.change({ tab: "checkpoints", fork: NEWEST, setting: null }, "open")}
        >
          Fork
        </Button>
      )}
      {job.verbs.filter(isLast).map((verb) => (
        <VerbButton key={verb} verb={verb} job={job} />
      ))}
    </div>
  );
}

function VerbButton({ verb, job }: { verb: Verb; job: Job }) {
  const view = useView();
  const barrier = useBarriers()(needOf(verb), job.project);
  if (verb === "save")
    return (
      <>
        <RequestButton kind="save" job={job} barrier={barrier} />
        <RequestButton kind="profile" job={job} barrier={barrier} />
      </>
    );
  return (
    <Button
      barrier={barrier}
      look={lookOf(verb, job)}
      title={VERBS[verb].means}
      aria-haspopup="dialog"
      // The URL opens the dialog, so that a link or a remedy can open it too.
      onClick={() => view.change({ dialog: verb, checkpoint: null }, "open")}
    >
      {VERBS[verb].label}
    </Button>
  );
}

export interface OpenDialog {
  verb: DialogVerb;
  /** Why the verb is not possible, or no longer; the dialog stays open to show it. */
  gone: string | null;
  onClose: () => void;
}

const CLOSED = { dialog: null, checkpoint: null, aim: null };

/**
 * Return the dialog that the URL names.
 *
 * A verb that the job's state forbids is removed from the URL immediately, so that no later state opens
 * the dialog again. The open dialog stays, with the reason, until a person closes it.
 */
export function useOpenDialog(job: Job): OpenDialog | null {
  const { dialog: word, change } = useView();
  const [gone, setGone] = useState<Pick<OpenDialog, "verb" | "gone"> | null>(null);
  const isClosing = useRef(false);
  const verb = isDialogVerb(word) ? word : null;
  const isLegal = verb !== null && job.verbs.includes(verb);
  const barriers = useBarriers();
  const isStale = word !== null && !isLegal;
  if (isStale && verb !== null && gone?.verb !== verb && !isClosing.current) {
    setGone({ verb, gone: goneWords(job, verb) });
  }
  useEffect(() => {
    if (word === null) isClosing.current = false;
    else if (isStale) change(CLOSED);
  }, [word, isStale, change]);
  const onClose = () => {
    isClosing.current = true; // until the URL changes, renders still find the verb in it
    setGone(null);
    change(CLOSED, "close");
  };
  if (isLegal) {
    const barrier = barriers(needOf(verb), job.project);
    return { verb, gone: barrier && barrierSentence(barrier), onClose };
  }
  return gone === null ? null : { ...gone, onClose };
}

function goneWords(job: Job, verb: DialogVerb): string {
  const why = job.reason ? ` (${job.reason})` : "";
  return `${VERBS[verb].label} is no longer possible: the job is ${job.state} now${why}.`;
}

const SAID_MILLISECONDS = 6_000;

interface RequestProps {
  kind: Asked;
  job: Job;
  barrier: string | null;
}

/** A button that sends a request to the trainer and shows its answer. */
function RequestButton({ kind, job, barrier }: RequestProps) {
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
        barrier={barrier}
        busy={isWaiting}
        title={`${means}\n\n${command(kind, reference)}`}
        onClick={() => ask.mutate()}
      >
        {isWaiting ? busy : label}
      </Button>
      {answer && (
        <span role="status" className={answer.ok ? "small muted" : "small tone-bad"}>
          {answer.message}
        </span>
      )}
      {ask.isError && <InlineError error={ask.error} className="small" />}
    </>
  );
}

interface Answer {
  ok: boolean;
  message: string;
}

/** Return the answer to a request, from its event, which may come before the reply to the POST. */
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
