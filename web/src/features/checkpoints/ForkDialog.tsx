// Starts a new job from a checkpoint, with a preview of what continues exactly.
import { keepPreviousData, useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate } from "react-router";
import { randomKey } from "@/shared/api/key";
import type { Job } from "@/shared/api/types";
import { command } from "@/shared/format/shell";
import { checkpointReference, checkpointWords, stepOf, useReference } from "@/shared/job/reference";
import { Badge } from "@/shared/ui/Badge";
import { ActionDialog } from "@/shared/ui/Dialog";
import { Field } from "@/shared/ui/Field";
import { SkeletonLines } from "@/shared/ui/Skeleton";
import { postFork } from "./api";
import { type ForkChoice, firstChoice, forkProblems, forkRequest, forkWords } from "./fork";

interface Props {
  job: Job;
  checkpointId: string;
  /** The initial setting. */
  setting: string | null;
  onClose: () => void;
}

export function ForkDialog({ job, checkpointId, setting, onClose }: Props) {
  const reference = checkpointReference(useReference(job), checkpointId);
  const navigate = useNavigate();
  const [choice, setChoice] = useState<ForkChoice>(() =>
    firstChoice({ step: stepOf(checkpointId), steps: job.progress.steps, setting }),
  );
  // Updated when a field loses focus: a preview after each letter would cost a request per letter.
  const [shown, setShown] = useState(choice);
  const [key, setKey] = useState(randomKey);
  const preview = useQuery({
    queryKey: ["fork", checkpointId, shown],
    queryFn: () => postFork(checkpointId, { ...forkRequest(shown), dry_run: true }),
    placeholderData: keepPreviousData,
    retry: false,
  });
  const start = useMutation({
    mutationFn: () => postFork(checkpointId, forkRequest(choice), key),
    onSuccess: (reply) => reply.job && navigate(`/jobs/${reply.job.id}`),
  });
  const change = (changed: Partial<ForkChoice>) => {
    setChoice({ ...choice, ...changed });
    setKey(randomKey()); // another request needs another key
  };
  const settle = () => setShown(choice);
  return (
    <ActionDialog
      wide
      title={`Fork ${checkpointWords(checkpointId)}`}
      label="Start the new job"
      disabled={preview.isError && shown === choice}
      action={{ ...start, error: null }}
      command={command("fork", reference, ...forkWords(choice))}
      onClose={onClose}
    >
      <p>A new job with a catalog and a chart of its own. This one stays as it is.</p>
      <Field htmlFor="fork-name" label="Name" help="Leave it empty for this job's, with -fork.">
        <input
          id="fork-name"
          className="input"
          value={choice.name}
          placeholder={preview.data?.preview?.name}
          onChange={(event) => change({ name: event.target.value })}
          onBlur={settle}
        />
      </Field>
      <Field
        htmlFor="fork-settings"
        label="Changed settings"
        help="One section.field=value a line, as with --set: training.steps=800"
      >
        <textarea
          id="fork-settings"
          className="textarea mono"
          rows={Math.max(3, choice.settings.split("\n").length)}
          value={choice.settings}
          onChange={(event) => change({ settings: event.target.value })}
          onBlur={settle}
        />
      </Field>
      <Field htmlFor="fork-parts" label="Taken over">
        <select
          id="fork-parts"
          className="select"
          value={choice.parts}
          onChange={(event) => {
            const parts = event.target.value === "model" ? "model" : "all";
            change({ parts });
            setShown({ ...choice, parts });
          }}
        >
          <option value="all">Everything that continues</option>
          <option value="model">The weights alone, from step 0</option>
        </select>
      </Field>
      {preview.isError ? (
        <Problems error={preview.error} />
      ) : preview.data ? (
        <ul className="fork-guarantees" aria-label="What stays exact">
          {preview.data.preview?.guarantees.map(({ name, holds, detail }) => (
            <li key={name}>
              <Badge tone={holds ? "ok" : "warn"}>
                {holds ? "✓" : "≠"} {name}
              </Badge>
              <span>{detail}</span>
            </li>
          ))}
        </ul>
      ) : (
        <SkeletonLines lines={4} />
      )}
      {start.isError && <Problems error={start.error} />}
    </ActionDialog>
  );
}

function Problems({ error }: { error: unknown }) {
  return (
    <div role="alert">
      {forkProblems(error).map((problem) => (
        <p className="inline-error" key={problem}>
          {problem}
        </p>
      ))}
    </div>
  );
}
