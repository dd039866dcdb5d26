// The priority of a job, and the dialog that changes it.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { keys } from "@/shared/api/queries";
import { priorityRequestPriorityAnyOf1Values } from "@/shared/api/schema";
import type { Job } from "@/shared/api/types";
import { command } from "@/shared/format/shell";
import { Button } from "@/shared/ui/Button";
import { ActionDialog } from "@/shared/ui/Dialog";
import { Field } from "@/shared/ui/Field";
import { postPriority } from "./api";
import { useReference } from "./reference";

export type Prioritized = Pick<Job, "id" | "name" | "priority_words" | "state">;

interface PriorityProps {
  job: Prioritized;
  /** Text of the button. */
  words: string;
  /** Why the caller may not change it. */
  barrier: string | null;
}

export function PriorityButton({ job, words, barrier }: PriorityProps) {
  const [isOpen, setIsOpen] = useState(false);
  return (
    <>
      <Button
        small
        look="quiet"
        barrier={barrier}
        aria-haspopup="dialog"
        title={`Change the priority of ${job.name}`}
        onClick={() => setIsOpen(true)}
      >
        {words}
      </Button>
      {isOpen && <PriorityDialog job={job} onClose={() => setIsOpen(false)} />}
    </>
  );
}

/** Numbers are legal too. */
const PRIORITY_NAMES = priorityRequestPriorityAnyOf1Values.map(String);

function PriorityDialog({ job, onClose }: { job: Prioritized; onClose: () => void }) {
  const client = useQueryClient();
  const [text, setText] = useState(job.priority_words);
  const given = text.trim();
  const priority = /^-?\d+$/.test(given) ? Number(given) : given;
  const change = useMutation({
    mutationFn: () => postPriority(job.id, priority),
    onSuccess: (changed) => {
      client.setQueryData(keys.jobView(job.id), changed);
      void client.invalidateQueries({ queryKey: keys.queue });
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
          {PRIORITY_NAMES.map((name) => (
            <option key={name} value={name} />
          ))}
        </datalist>
      </Field>
    </ActionDialog>
  );
}
