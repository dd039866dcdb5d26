// Gives a job to another user of its project.
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { UserField } from "@/shared/accounts/UserField";
import { includes } from "@/shared/api/barriers";
import { api, ask } from "@/shared/api/client";
import { errorAt, errorBeyond } from "@/shared/api/errors";
import { keys, membersQuery } from "@/shared/api/queries";
import type { Job } from "@/shared/api/types";
import { useBarriers } from "@/shared/api/useMay";
import { curl } from "@/shared/format/shell";
import { at } from "@/shared/job/api";
import { Button } from "@/shared/ui/Button";
import { ActionDialog } from "@/shared/ui/Dialog";

export function OwnerButton({ job }: { job: Job }) {
  const [isOpen, setIsOpen] = useState(false);
  const barrier = useBarriers()("members:write", job.project);
  return (
    <>
      <Button
        small
        look="quiet"
        barrier={barrier}
        aria-haspopup="dialog"
        title="Gives the job to another user"
        onClick={() => setIsOpen(true)}
      >
        Transfer
      </Button>
      {isOpen && <OwnerDialog job={job} onClose={() => setIsOpen(false)} />}
    </>
  );
}

function OwnerDialog({ job, onClose }: { job: Job; onClose: () => void }) {
  const client = useQueryClient();
  const members = useQuery(membersQuery(job.project));
  const [typed, setTyped] = useState("");
  const owner = typed.trim();
  const transfer = useMutation({
    mutationFn: () =>
      ask(api.POST("/api/v1/jobs/{job_id}/owner", { params: at(job.id), body: { owner } })),
    onSuccess: (changed) => {
      client.setQueryData(keys.jobView(job.id), changed);
      void client.invalidateQueries({ queryKey: keys.jobs });
      onClose();
    },
  });
  const submitters = members.data?.filter(({ role }) => includes(role, "member")) ?? [];
  return (
    <ActionDialog
      title={`Transfer ${job.name}`}
      label="Transfer"
      action={{ ...transfer, error: errorBeyond(transfer.error, ["/owner"]) }}
      disabled={owner === "" || owner === job.owner}
      command={curl("POST", `/jobs/${job.id}/owner`, { owner: owner || "NAME" })}
      onClose={onClose}
    >
      <p>
        The new owner may run commands in the job and fork it, and so sees its secrets. Open
        commands in the job end. The job itself continues.
      </p>
      <UserField
        label="New owner"
        help={`An active user with the role member in ${job.project}.`}
        value={typed}
        error={errorAt(transfer.error, "/owner")}
        names={submitters.map(({ user }) => user)}
        without={job.owner === null ? [] : [job.owner]}
        onChange={setTyped}
      />
    </ActionDialog>
  );
}
