// The dialogs that end a job: stop, cancel, delete.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useId, useState } from "react";
import { useNavigate } from "react-router";
import { keys } from "@/shared/api/queries";
import type { Job } from "@/shared/api/types";
import { count, plural } from "@/shared/format/numbers";
import { GoneNotice } from "@/shared/job/GoneNotice";
import { useReference } from "@/shared/job/reference";
import { useLastCheckpoint } from "@/shared/job/useLastCheckpoint";
import { deleteCommand, type EndVerb, endCommand, VERBS } from "@/shared/job/verbs";
import { Button, type ButtonLook } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Dialog } from "@/shared/ui/Dialog";
import { Field } from "@/shared/ui/Field";
import { InlineError } from "@/shared/ui/Notice";
import { deleteJob, postEnd } from "./api";

interface DialogProps {
  job: Job;
  onClose: () => void;
  /** Why it is no longer possible. */
  gone: string | null;
}

export function ActionDialog({ verb, ...props }: DialogProps & { verb: EndVerb | "delete" }) {
  return verb === "delete" ? <DeleteDialog {...props} /> : <EndDialog verb={verb} {...props} />;
}

const BUTTONS = {
  stop: { label: "Stop", look: "primary" },
  cancel: { label: "Cancel the job", look: "danger" },
} as const;

function EndDialog({ verb, job, onClose, gone }: DialogProps & { verb: EndVerb }) {
  const [reason, setReason] = useState("");
  const reference = useReference(job);
  const client = useQueryClient();
  const end = useMutation({
    mutationFn: () => postEnd(job.id, verb, reason),
    onSuccess: (after) => {
      onClose(); // first, because the new state forbids the verb
      client.setQueryData(keys.jobView(job.id), after);
    },
  });
  return (
    <ConfirmDialog
      title={`${VERBS[verb].label} ${job.name}?`}
      means={VERBS[verb].means}
      command={endCommand(verb, reference, reason)}
      button={{ ...BUTTONS[verb], busy: end.isPending, onClick: end.mutate }}
      error={end.error}
      gone={gone}
      onClose={onClose}
    >
      {verb === "cancel" && <Lost job={job} />}
      <Reason value={reason} onChange={setReason} />
    </ConfirmDialog>
  );
}

/** Steps that a cancel would lose now. */
function Lost({ job }: { job: Job }) {
  const last = useLastCheckpoint(job.id);
  if (last === undefined || job.progress.step === 0) return null;
  const from = last?.step ?? 0;
  const lost = Math.max(job.progress.step - from, 0);
  if (lost === 0) return <p>Nothing is lost: step {count(from)} is saved.</p>;
  return (
    <p>
      <strong>{plural(lost, "step")}</strong> since{" "}
      {last ? `the checkpoint of step ${count(from)}` : "the start"} would be lost.
    </p>
  );
}

function DeleteDialog({ job, onClose, gone }: DialogProps) {
  const [checkpoints, setCheckpoints] = useState<"keep" | "delete">("keep");
  const reference = useReference(job);
  const navigate = useNavigate();
  const client = useQueryClient();
  const remove = useMutation({
    mutationFn: () => deleteJob(job.id, checkpoints),
    onSuccess: async () => {
      await navigate("/jobs");
      client.removeQueries({ queryKey: keys.job(job.id) });
      await client.invalidateQueries({ queryKey: keys.jobs });
    },
  });
  const id = useId();
  return (
    <ConfirmDialog
      title={`Delete ${job.name}?`}
      means={VERBS.delete.means}
      command={deleteCommand(reference, checkpoints)}
      button={{ label: "Delete", look: "danger", busy: remove.isPending, onClick: remove.mutate }}
      error={remove.error}
      gone={gone}
      onClose={onClose}
    >
      <label className="job-choice" htmlFor={id}>
        <input
          id={id}
          type="checkbox"
          checked={checkpoints === "delete"}
          onChange={(event) => setCheckpoints(event.target.checked ? "delete" : "keep")}
        />
        Delete its checkpoints on storage too
      </label>
    </ConfirmDialog>
  );
}

interface ConfirmProps {
  title: string;
  means: string;
  command: string;
  button: { label: string; look: ButtonLook; busy: boolean; onClick: () => void };
  error: unknown;
  gone: string | null;
  onClose: () => void;
  children: ReactNode;
}

function ConfirmDialog(props: ConfirmProps) {
  const { title, means, command, button, error, gone, onClose, children } = props;
  return (
    <Dialog
      title={title}
      onClose={onClose}
      footer={
        <>
          <Button onClick={onClose}>Back</Button>
          <Button
            look={button.look}
            busy={button.busy}
            disabled={gone !== null}
            onClick={() => button.onClick()}
          >
            {button.label}
          </Button>
        </>
      }
    >
      {gone !== null && <GoneNotice>{gone}</GoneNotice>}
      <p>{means}</p>
      {children}
      {error !== null && <InlineError error={error} />}
      <CommandLine command={command} label="The same by command line" />
    </Dialog>
  );
}

function Reason({ value, onChange }: { value: string; onChange: (reason: string) => void }) {
  const id = useId();
  return (
    <Field htmlFor={id} label="Reason" help="Optional; shown in the job's events.">
      <input
        id={id}
        className="input"
        maxLength={500}
        value={value}
        aria-describedby={`${id}-said`}
        onChange={(event) => onChange(event.target.value)}
      />
    </Field>
  );
}
