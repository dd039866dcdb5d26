// The settings of an export, with the equivalent command line.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useId, useState } from "react";
import { ApiError } from "@/shared/api/errors";
import { keys } from "@/shared/api/queries";
import type { CheckpointView, ExportRequest, Job } from "@/shared/api/types";
import { count } from "@/shared/format/numbers";
import { checkpointReference, useReference } from "@/shared/job/reference";
import { ActionDialog } from "@/shared/ui/Dialog";
import { Field } from "@/shared/ui/Field";
import { postExport } from "./api";
import { CHECKPOINT_VERBS, exportCommand } from "./operations";

type Dtype = NonNullable<ExportRequest["dtype"]>;
const DTYPES: readonly Dtype[] = ["float32", "bfloat16", "float16"];

interface Props {
  job: Job;
  row: CheckpointView;
  onClose: () => void;
}

export function ExportDialog({ job, row, onClose }: Props) {
  const stored = job.spec.training.weight_dtype;
  const [dtype, setDtype] = useState<Dtype>(stored);
  const [name, setName] = useState("");
  const id = useId();
  const reference = checkpointReference(useReference(job), row.id);
  const client = useQueryClient();
  const request = { dtype, ...(name ? { name } : {}) };
  const send = useMutation({
    mutationFn: () => postExport(row.id, request),
    onSuccess: async () => {
      onClose();
      await client.invalidateQueries({ queryKey: keys.job(job.id) });
    },
  });
  const nameError =
    send.error instanceof ApiError
      ? send.error.errors.find(({ pointer }) => pointer === "/name")?.detail
      : undefined;
  return (
    <ActionDialog
      title={`Export step ${count(row.step)} of attempt ${row.attempt}`}
      label="Export"
      action={{ ...send, error: nameError ? null : send.error }}
      command={exportCommand(reference, request)}
      onClose={onClose}
    >
      <p>{CHECKPOINT_VERBS.export.means}</p>
      <Field htmlFor={`${id}-dtype`} label="Type" help={`The weights are stored as ${stored}.`}>
        <select
          id={`${id}-dtype`}
          className="select"
          value={dtype}
          aria-describedby={`${id}-dtype-said`}
          onChange={(event) => setDtype(event.target.value as Dtype)}
        >
          {DTYPES.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
      </Field>
      <Field
        htmlFor={`${id}-name`}
        label="Folder"
        help="Below exports/ on the checkpoint's storage root; existing files stay."
        error={nameError}
      >
        <input
          id={`${id}-name`}
          className="input"
          maxLength={150}
          placeholder={`${row.id}-${dtype}`}
          value={name}
          aria-describedby={`${id}-name-said`}
          onChange={(event) => setName(event.target.value)}
        />
      </Field>
    </ActionDialog>
  );
}
