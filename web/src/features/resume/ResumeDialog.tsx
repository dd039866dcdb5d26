// The resume dialog: select slots, layout and checkpoint, compare, launch.
import { useId } from "react";
import { Link } from "react-router";
import type { Job, ResumeOptions } from "@/shared/api/types";
import { count, plural } from "@/shared/format/numbers";
import { calibrationWords } from "@/shared/format/prediction";
import { command } from "@/shared/format/shell";
import { useReference } from "@/shared/job/reference";
import { reachedStep } from "@/shared/job/steps";
import { Button } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Dialog } from "@/shared/ui/Dialog";
import { Field } from "@/shared/ui/Field";
import { Absent, InlineError } from "@/shared/ui/Notice";
import { submitPath } from "@/shared/url/pages";
import { Comparison } from "./Comparison";
import { LayoutTable } from "./LayoutTable";
import { type Opened, type Resume, resumeCommand, useResume } from "./useResume";
import "./resume.css";

export function ResumeDialog({ job, ...opened }: Opened & { job: Job }) {
  const { onClose, gone } = opened;
  const resume = useResume(job, opened);
  const reference = useReference(job);
  const { choice, isResize, launch, row } = resume;
  const verb = isResize ? "Resize" : "Resume";
  return (
    <Dialog
      title={`${verb} ${job.name}`}
      onClose={onClose}
      gone={gone}
      wide
      footer={
        <>
          {choice && (
            <div className="resume-command">
              <CommandLine command={resumeCommand(reference, job, choice)} />
            </div>
          )}
          <Button onClick={onClose}>Back</Button>
          <Button
            look="primary"
            busy={launch.isPending}
            disabled={choice === null || !resume.isCurrent || gone !== null}
            onClick={() => choice && launch.mutate(choice)}
          >
            {verb} on {row ? plural(row.worldSize, "slot") : "…"}
          </Button>
        </>
      }
    >
      {launch.isError && <InlineError error={launch.error} />}
      {isResize && (
        <p className="muted">
          The running attempt first saves and stops, now at step{" "}
          {reachedStep(job.progress, job.state)}; then the job resumes from that save. No step is
          lost.
        </p>
      )}
      {(gone === null || resume.preview.data) && <Choices job={job} resume={resume} />}
    </Dialog>
  );
}

function Choices({ job, resume }: { job: Job; resume: Resume }) {
  const { options, rows, row } = resume;
  const codeId = useId();
  const plan = resume.preview.data?.preview.plan ?? null;
  if (!options.data) return <Absent query={options} lines={10} />;
  if (rows.length === 0) {
    return (
      <p>
        No node is online, so no number of slots can be chosen. Start a worker to see which layouts
        fit, or resume by command line: the job then waits.
      </p>
    );
  }
  return (
    <>
      <LayoutTable
        rows={rows}
        chosen={row}
        onChoose={resume.chooseRow}
        plan={resume.isCurrent ? plan : null}
        deviceMemory={plan?.kind === "trainer" ? plan.device_memory_bytes : null}
        isResize={resume.isResize}
      />
      {resume.isDeadEnd && <DeadEnd job={job} />}
      {options.data.calibration && (
        <p className="faint small">{calibrationWords(options.data.calibration)}</p>
      )}
      <div className="resume-fields">
        <CheckpointField job={job} resume={resume} />
        {!job.spec.program && (
          <NumberField
            label="Micro-batch"
            unit="sequences"
            value={resume.microBatchSize}
            onChange={resume.setMicroBatchSize}
            usual={row?.option?.batch?.micro_batch_size}
            error={resume.problems.at.microBatchSize}
          />
        )}
        <NumberField
          label="Total steps"
          value={resume.steps}
          onChange={resume.setSteps}
          usual={job.progress.steps ?? undefined}
          error={resume.problems.at.steps}
        />
      </div>
      {job.spec.model.code && (
        <label className="row" htmlFor={codeId}>
          <input
            id={codeId}
            type="checkbox"
            checked={resume.allowCodeChange}
            onChange={(event) => resume.setAllowCodeChange(event.target.checked)}
          />
          Resume although the files of {job.spec.model.code} have changed
        </label>
      )}
      <Comparison job={job} resume={resume} />
    </>
  );
}

/** After a shortage of memory: a warning that the choice needs as much memory as the failed attempt. */
function DeadEnd({ job }: { job: Job }) {
  const reference = useReference(job);
  const isFull = job.effective_spec.activation_checkpoint.mode === "full";
  const setting = "activation_checkpoint.mode=full";
  return (
    <div className="stack" role="note">
      <p>
        This choice ran out of memory before, and needs as much again. Choose more slots
        {isFull ? "" : ", recompute activations (below)"}, or submit{" "}
        <Link to={submitPath({ from: job.id, find: "model." })}>a new job</Link> with a smaller
        model or shorter sequences.
      </p>
      {!isFull && <CommandLine command={command("resume", reference, "--set", setting)} />}
    </div>
  );
}

function newestWords(job: Job, isResize: boolean, newest: ResumeOptions | undefined): string {
  if (isResize) return `the save of the stop: step ${count(job.progress.step)} or later`;
  return newest?.checkpoint_id ? `newest: step ${count(newest.step)}` : "none: from the start";
}

function CheckpointField({ job, resume }: { job: Job; resume: Resume }) {
  const id = useId();
  const { options, checkpoints, choice } = resume;
  const newest = options.data;
  const implied = resume.isResize ? null : newest?.checkpoint_id; // option "" already stands for it
  const known = checkpoints.filter((one) => one.id !== implied);
  const chosen = choice?.checkpointId ?? "";
  const isListed = chosen === "" || known.some((one) => one.id === chosen);
  return (
    <Field htmlFor={id} label="Checkpoint" error={resume.problems.at.checkpoint}>
      <select
        id={id}
        aria-describedby={`${id}-said`}
        className="select"
        value={chosen === implied ? "" : chosen}
        onChange={(event) => resume.chooseCheckpoint(event.target.value || null)}
      >
        <option value="">{newestWords(job, resume.isResize, newest)}</option>
        {!isListed && <option value={chosen}>{chosen}</option>}
        {known.map((one) => (
          <option key={one.id} value={one.id}>
            step {count(one.step)} · attempt {one.attempt} · {one.kind}
            {one.on_lineage ? "" : " · abandoned branch"}
          </option>
        ))}
      </select>
    </Field>
  );
}

interface NumberFieldProps {
  label: string;
  unit?: string;
  value: string;
  onChange: (value: string) => void;
  /** Value used for an empty field. */
  usual: number | undefined;
  error: string | undefined;
}

function NumberField({ label, unit, value, onChange, usual, error }: NumberFieldProps) {
  const id = useId();
  return (
    <Field htmlFor={id} label={unit ? `${label} (${unit})` : label} error={error}>
      <input
        id={id}
        className="input"
        inputMode="numeric"
        autoComplete="off"
        aria-describedby={`${id}-said`}
        aria-invalid={error !== undefined}
        placeholder={usual === undefined ? "" : String(usual)}
        value={value}
        onChange={(event) => onChange(event.target.value)}
      />
    </Field>
  );
}
