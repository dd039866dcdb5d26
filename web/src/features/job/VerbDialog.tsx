// The dialogs that end a job: stop, cancel, delete.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useId, useState } from "react";
import { useNavigate } from "react-router";
import { keys } from "@/shared/api/queries";
import type { Job } from "@/shared/api/types";
import { count, plural } from "@/shared/format/numbers";
import { useReference } from "@/shared/job/reference";
import { useLastCheckpoint } from "@/shared/job/useLastCheckpoint";
import { deleteCommand, type EndVerb, endCommand, VERBS } from "@/shared/job/verbs";
import { ActionDialog } from "@/shared/ui/Dialog";
import { Field } from "@/shared/ui/Field";
import { deleteJob, postEnd } from "./api";

interface DialogProps {
  job: Job;
  onClose: () => void;
  /** Why the verb is no longer possible. */
  gone: string | null;
}

export function VerbDialog({ verb, ...props }: DialogProps & { verb: EndVerb | "delete" }) {
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
    <ActionDialog
      title={`${VERBS[verb].label} ${job.name}?`}
      {...BUTTONS[verb]}
      action={end}
      command={endCommand(verb, reference, reason)}
      gone={gone}
      onClose={onClose}
    >
      <p>{VERBS[verb].means}</p>
      {verb === "cancel" && <Lost job={job} />}
      <Reason value={reason} onChange={setReason} />
    </ActionDialog>
  );
}

/** The steps that a cancel would lose now. */
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
    <ActionDialog
      title={`Delete ${job.name}?`}
      label="Delete"
      look="danger"
      action={remove}
      command={deleteCommand(reference, checkpoints)}
      gone={gone}
      onClose={onClose}
    >
      <p>{VERBS.delete.means}</p>
      <label className="row" htmlFor={id}>
        <input
          id={id}
          type="checkbox"
          checked={checkpoints === "delete"}
          onChange={(event) => setCheckpoints(event.target.checked ? "delete" : "keep")}
        />
        Delete its checkpoints on storage too
      </label>
    </ActionDialog>
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
