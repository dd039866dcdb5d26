// The priority of a job in the queue, and the dialog that changes it.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { keys } from "@/shared/api/queries";
import type { Job } from "@/shared/api/types";
import { command } from "@/shared/format/shell";
import { PRIORITY_CLASSES, priorityWords } from "@/shared/job/priority";
import { useReference } from "@/shared/job/reference";
import { Button } from "@/shared/ui/Button";
import { ActionDialog } from "@/shared/ui/Dialog";
import { Field } from "@/shared/ui/Field";
import { postPriority } from "./api";

export function Priority({ job }: { job: Job }) {
  const [isOpen, setIsOpen] = useState(false);
  const words = `priority ${priorityWords(job.priority)}`;
  if (job.ended_at !== null) return words;
  return (
    <>
      <Button
        small
        look="quiet"
        aria-haspopup="dialog"
        title="Change the priority"
        onClick={() => setIsOpen(true)}
      >
        {words}
      </Button>
      {isOpen && <PriorityDialog job={job} onClose={() => setIsOpen(false)} />}
    </>
  );
}

function PriorityDialog({ job, onClose }: { job: Job; onClose: () => void }) {
  const client = useQueryClient();
  const [text, setText] = useState(priorityWords(job.priority));
  const given = text.trim();
  const priority = /^-?\d+$/.test(given) ? Number(given) : given;
  const change = useMutation({
    mutationFn: () => postPriority(job.id, priority),
    onSuccess: (changed) => {
      client.setQueryData(keys.jobView(job.id), changed);
      onClose();
    },
  });
  const words = given.startsWith("-") ? ["--", given] : [given];
  return (
    <ActionDialog
      title={`Priority of ${job.name}`}
      label="Change"
      disabled={given === ""}
      action={change}
      command={command("priority", useReference(job), ...words)}
      onClose={onClose}
    >
      <Field
        htmlFor="priority"
        label="Priority"
        help={
          job.state === "queued"
            ? "Jobs of higher priority start first; among equals the oldest."
            : "The job keeps its slots; the priority counts when it is queued again."
        }
      >
        <input
          id="priority"
          className="input"
          list="priorities"
          value={text}
          onChange={(event) => setText(event.target.value)}
        />
        <datalist id="priorities">
          {Object.keys(PRIORITY_CLASSES).map((name) => (
            <option key={name} value={name} />
          ))}
        </datalist>
      </Field>
    </ActionDialog>
  );
}
