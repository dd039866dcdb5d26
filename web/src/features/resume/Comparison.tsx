// The preview of a resume: changed and unchanged values.
import type { Job, ResumePreview } from "@/shared/api/types";
import { grouped } from "@/shared/format/grouped";
import { count } from "@/shared/format/numbers";
import { checkpointWords } from "@/shared/job/reference";
import { SkeletonLines } from "@/shared/ui/Skeleton";
import type { Resume } from "./useResume";

const AT_FIELD = "The changes appear here as soon as the values above are legal.";

const NOTHING_FREE =
  "No other layout is free now. Choose one that waits for its slots, or change the micro-batch " +
  "of the running attempt.";

export function Comparison({ job, resume }: { job: Job; resume: Resume }) {
  const { preview, problems } = resume;
  if (preview.isError && !preview.isFetching) {
    return (
      <div className="resume-comparison">
        {problems.others.map((problem) => (
          <p key={problem} className="inline-error" role="alert">
            {problem}
          </p>
        ))}
        {problems.others.length === 0 && <p className="muted">{AT_FIELD}</p>}
      </div>
    );
  }
  if (resume.isSame) {
    return (
      <div className="resume-comparison">
        <p className="muted">
          The job already runs like this: choose another number of slots, layout or micro-batch.
        </p>
      </div>
    );
  }
  if (resume.choice === null) {
    return (
      <div className="resume-comparison">
        <p className="muted">{resume.row ? AT_FIELD : NOTHING_FREE}</p>
      </div>
    );
  }
  if (!preview.data) {
    return (
      <div className="resume-comparison">
        <SkeletonLines lines={6} />
      </div>
    );
  }
  return (
    <div className="resume-comparison" aria-busy={!resume.isCurrent} aria-live="polite">
      <Branch job={job} preview={preview.data.preview} />
      <Lines job={job} preview={preview.data.preview} />
      <Warnings preview={preview.data.preview} />
    </div>
  );
}

/** Warns before the launch that an older checkpoint makes a branch. */
function Branch({ job, preview }: { job: Job; preview: ResumePreview }) {
  if (!preview.branch || !preview.checkpoint_id) return null;
  return (
    <p className="resume-warning">
      <strong>This makes a branch.</strong> The job resumes from{" "}
      {checkpointWords(preview.checkpoint_id)}; steps {count(preview.step + 1)} to{" "}
      {count(job.progress.step)} are abandoned. Their checkpoints stay, and the charts show them as
      a dashed line.
    </p>
  );
}

/** Values that affect the result; they come first. */
const WEIGHTY = [
  "step",
  "global batch size",
  "data position",
  "tokens so far",
  "learning rate of the next step",
  "end of the schedule",
  "sequence length",
  "seed",
];

function byWeight(one: { name: string }, other: { name: string }): number {
  return weightOf(one.name) - weightOf(other.name);
}

function weightOf(name: string): number {
  const place = WEIGHTY.indexOf(name);
  return place < 0 ? WEIGHTY.length : place;
}

function Lines({ job, preview }: { job: Job; preview: ResumePreview }) {
  const changed = preview.changes.filter((change) => change.changed);
  const same = preview.changes.filter((change) => !change.changed).sort(byWeight);
  return (
    <div className="resume-lines">
      <section aria-label="Changes">
        <h3>Changes</h3>
        <dl className="facts facts-ruled">
          {changed.map(({ name, before, after }) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>
                <span className="muted">{grouped(before)} →</span> <strong>{grouped(after)}</strong>
              </dd>
            </div>
          ))}
          <div>
            <dt>provenance</dt>
            <dd>
              <span className="muted">{provenanceWords(job)} →</span> recorded at the start
            </dd>
          </div>
        </dl>
      </section>
      <section aria-label="Stays the same">
        <h3>Stays the same</h3>
        <dl className="facts facts-ruled">
          {same.map(({ name, after }) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{grouped(after)}</dd>
            </div>
          ))}
        </dl>
      </section>
    </div>
  );
}

/** Return torch, commit and host of the newest attempt. */
function provenanceWords(job: Job): string {
  const { torch, git_commit, host } = job.current_attempt?.provenance ?? {};
  const words = [
    typeof torch === "string" && `torch ${torch}`,
    typeof git_commit === "string" && git_commit.slice(0, 7),
    typeof host === "string" && host,
  ].filter((word) => word !== false);
  return words.join(", ") || "none yet";
}

function Warnings({ preview }: { preview: ResumePreview }) {
  return preview.plan.warnings.map(({ pointer, detail }) => (
    <p key={pointer + detail} className="resume-warning">
      {detail}
    </p>
  ));
}
