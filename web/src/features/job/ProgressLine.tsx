// Progress of the job: a bar and the main numbers.
import type { Job } from "@/shared/api/types";
import { count, metric, NONE, percent, short } from "@/shared/format/numbers";
import { duration } from "@/shared/format/time";
import { reachedStep } from "@/shared/job/steps";
import { Fact } from "@/shared/ui/Field";
import { Elapsed, RelativeTime, useNow } from "@/shared/ui/RelativeTime";

const SILENT_SECONDS = 60;
const PHASES: Record<string, string> = {
  starting: "starting",
  building_cache: "building the token cache",
  loading: "loading the checkpoint",
  compiling: "compiling",
  training: "training",
  validating: "validating",
  saving: "saving a checkpoint",
  ending: "ending",
};

export function ProgressLine({ job }: { job: Job }) {
  const { progress } = job;
  const steps = progress.steps ?? 0;
  const share = steps > 0 ? Math.min(progress.step / steps, 1) : 0;
  const isActive = job.ended_at === null && job.state !== "queued";
  const hasTokens = !job.effective_spec.program || progress.tokens_per_second !== null;
  const phase = isActive && progress.phase ? (PHASES[progress.phase] ?? progress.phase) : NONE;
  return (
    <div className="job-progress panel">
      {progress.steps !== null && (
        <div
          className="job-bar"
          role="progressbar"
          aria-label="Steps"
          aria-valuemin={0}
          aria-valuemax={steps}
          aria-valuenow={progress.step}
          data-state={job.state}
        >
          <div className="job-bar-done" style={{ width: `${share * 100}%` }} />
        </div>
      )}
      <dl className="job-numbers">
        <Fact name="Step">
          {reachedStep(progress, job.state)}{" "}
          {progress.steps !== null && (
            <>
              <small>of {count(progress.steps)}</small>{" "}
              <small>{percent(Math.floor(share * 1000) / 1000)}</small>
            </>
          )}
        </Fact>
        <Fact name="Loss">{metric(progress.loss)}</Fact>
        {hasTokens && (
          <Fact name="Tokens/s">{isActive ? short(progress.tokens_per_second) : NONE}</Fact>
        )}
        <Fact name={job.ended_at ? "Ran for" : "Time left"}>
          <Time job={job} isActive={isActive} />
        </Fact>
        <Fact name="Phase">
          {phase} <Silence job={job} isActive={isActive} />
        </Fact>
      </dl>
    </div>
  );
}

function Time({ job, isActive }: { job: Job; isActive: boolean }) {
  if (job.state === "stopping") return NONE;
  if (isActive) return duration(job.progress.seconds_left);
  // Pauses between attempts do not count.
  if (job.ended_at && job.active_seconds !== null) return duration(job.active_seconds);
  if (!job.started_at || !job.ended_at) return NONE;
  return <Elapsed from={job.started_at} to={job.ended_at} />;
}

/** Shows the age of the last report if it is old. */
function Silence({ job, isActive }: { job: Job; isActive: boolean }) {
  const now = useNow();
  const heard = job.progress.heartbeat_at;
  if (!isActive || !heard || now - Date.parse(heard) < SILENT_SECONDS * 1000) return null;
  return (
    <small className="job-silent">
      last report <RelativeTime at={heard} isSentence />
    </small>
  );
}
