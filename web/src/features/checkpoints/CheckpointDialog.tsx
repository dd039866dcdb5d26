// Confirms an action on a checkpoint, with the equivalent command line.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { keys } from "@/shared/api/queries";
import type { CheckpointView, Job } from "@/shared/api/types";
import { bytes, count, plural } from "@/shared/format/numbers";
import { checkpointReference, useReference } from "@/shared/job/reference";
import { ActionDialog } from "@/shared/ui/Dialog";
import { actOnCheckpoint } from "./api";
import { CHECKPOINT_VERBS, type CheckpointVerb, verbCommand } from "./operations";

interface Props {
  job: Job;
  row: CheckpointView;
  verb: Exclude<CheckpointVerb, "export">;
  onClose: () => void;
}

export function CheckpointDialog({ job, row, verb, onClose }: Props) {
  const reference = checkpointReference(useReference(job), row.id);
  const client = useQueryClient();
  const act = useMutation({
    mutationFn: () => actOnCheckpoint(row.id, verb),
    onSuccess: async () => {
      onClose();
      await client.invalidateQueries({ queryKey: keys.job(job.id) });
    },
  });
  const { label, means } = CHECKPOINT_VERBS[verb];
  return (
    <ActionDialog
      title={`${label} step ${count(row.step)} of attempt ${row.attempt}?`}
      label={label}
      look={verb === "delete" ? "danger" : "primary"}
      action={act}
      command={verbCommand(verb, reference)}
      onClose={onClose}
    >
      <p>{means}</p>
      {(verb === "delete" || verb === "verify") && (
        <p className="muted">
          {bytes(row.size)} in {plural(row.files, "file")}, on a node that sees the storage.
        </p>
      )}
    </ActionDialog>
  );
}
