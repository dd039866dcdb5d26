// What slows a job, from its own records: a row for each finding, the costliest first.
import { useQuery } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import { keys } from "@/shared/api/queries";
import type { AdviceFinding, Job } from "@/shared/api/types";
import { plural } from "@/shared/format/numbers";
import { command } from "@/shared/format/shell";
import { at } from "@/shared/job/api";
import { useReference } from "@/shared/job/reference";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Absent } from "@/shared/ui/Notice";
import { shareWords } from "./ledger";

/** Events do not refresh the answer, because each answer replays the job's saves. */
const REFRESH_MILLISECONDS = 60_000;

export function Advice({ job }: { job: Job }) {
  const advice = useQuery({
    queryKey: [...keys.goodput, "advice", job.id],
    queryFn: ({ signal }) =>
      ask(api.GET("/api/v1/jobs/{job_id}/advice", { params: at(job.id), signal })),
    staleTime: REFRESH_MILLISECONDS,
    refetchInterval: job.ended_at ? false : REFRESH_MILLISECONDS,
  });
  const reference = useReference(job);
  if (!advice.data) return <Absent query={advice} lines={3} />;
  const { attempt, findings, recent_steps: steps } = advice.data;
  return (
    <section className="panel goodput">
      <h2>What slows this job</h2>
      {findings.length === 0 ? (
        <p>Nothing slows it noticeably.</p>
      ) : (
        <ol className="advice">
          {findings.map((finding) => (
            <Row key={finding.hindrance} finding={finding} />
          ))}
        </ol>
      )}
      <p className="muted">
        {attempt === null
          ? "No step times are recorded: the findings use only the time on slots."
          : `From the last ${plural(steps, "step")} of attempt ${attempt}.`}
      </p>
      <CommandLine command={command("advise", reference)} />
    </section>
  );
}

function Row({ finding }: { finding: AdviceFinding }) {
  return (
    <li>
      <strong>{finding.words}</strong>
      <span>
        {finding.remedy}
        {finding.gain === null ? null : ` At most ${shareWords(finding.gain)} faster.`}
      </span>
    </li>
  );
}
