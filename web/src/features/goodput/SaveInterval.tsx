// The outcome of other save intervals, by a replay of the job's records.
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useId, useState } from "react";
import { api, ask } from "@/shared/api/client";
import { keys } from "@/shared/api/queries";
import type { IntervalOutcome, Job, SaveIntervalWhatIf } from "@/shared/api/types";
import { useSettled } from "@/shared/api/useSettled";
import { count, plural } from "@/shared/format/numbers";
import { command } from "@/shared/format/shell";
import { duration, fine } from "@/shared/format/time";
import { at } from "@/shared/job/api";
import { useReference } from "@/shared/job/reference";
import { CommandLine } from "@/shared/ui/CommandLine";
import { InlineError } from "@/shared/ui/Notice";
import { Table } from "@/shared/ui/table/Table";
import { ratioWords } from "./ledger";

const TYPING_MILLISECONDS = 300;
/** Events do not refresh the answer, because each answer replays the job many times. */
const REFRESH_MILLISECONDS = 60_000;
const WHOLE = /^\d{1,9}$/;

export function SaveInterval({ job }: { job: Job }) {
  const input = useId();
  const usual = job.effective_spec.checkpoint.interval_steps;
  const [typed, setTyped] = useState(
    typeof usual === "number" && usual > 0 ? String(Math.max(1, Math.round(usual / 2))) : "100",
  );
  const settled = useSettled(typed.trim(), TYPING_MILLISECONDS);
  const isLegal = WHOLE.test(settled);
  const interval = Number(settled);
  const answer = useQuery({
    queryKey: [...keys.goodput, "what-if", job.id, interval],
    queryFn: ({ signal }) =>
      ask(
        api.GET("/api/v1/jobs/{job_id}/goodput/what-if", {
          params: { ...at(job.id), query: { interval_steps: interval } },
          signal,
        }),
      ),
    enabled: isLegal,
    placeholderData: keepPreviousData,
    staleTime: REFRESH_MILLISECONDS,
    refetchInterval: job.ended_at ? false : REFRESH_MILLISECONDS,
  });
  const reference = useReference(job);
  return (
    <section className="panel goodput">
      <h2>With another save interval</h2>
      <p className="muted">
        The same steps at the same pace, the same failures: saves after each
        <label htmlFor={input} className="visually-hidden">
          Steps between two saves
        </label>{" "}
        <input
          id={input}
          className="input goodput-interval"
          inputMode="numeric"
          aria-invalid={!WHOLE.test(typed.trim()) || undefined}
          value={typed}
          onChange={(event) => setTyped(event.target.value)}
        />{" "}
        steps, or none with 0.
      </p>
      {answer.error && <InlineError error={answer.error} />}
      {answer.data && <Outcomes answer={answer.data} />}
      {isLegal && <CommandLine command={command("goodput", reference, "--save-every", settled)} />}
    </section>
  );
}

const COLUMNS = [
  { name: "saves", label: "Saves" },
  { name: "goodput", label: "Goodput", number: true },
  { name: "wall", label: "Wall time", number: true },
  { name: "lost", label: "Steps lost", number: true },
  { name: "stalls", label: "Stalls of saves", number: true },
];

function Outcomes({ answer }: { answer: SaveIntervalWhatIf }) {
  const { replayed, best, best_interval_steps, daly_interval_steps: daly } = answer;
  if (!replayed || !best) return <p>No step times are recorded: there is nothing to replay.</p>;
  return (
    <>
      <Table label="Outcomes by save interval" columns={COLUMNS}>
        <Outcome words="as recorded" outcome={answer.recorded} />
        <Outcome words={every(answer.interval_steps)} outcome={replayed} />
        <Outcome words={`best: ${every(best_interval_steps ?? 0)}`} outcome={best} />
      </Table>
      <p className="muted">
        A save holds up training for {fine(answer.stall_seconds)}.
        {daly !== null && ` Daly’s estimate of the best interval: ${plural(daly, "step")}.`}
        {best.expected_ettr !== null &&
          ` Expected effective training time ratio of a long run: ${expected(replayed, answer.interval_steps)}${ratioWords(best.expected_ettr)} with saves ${every(best_interval_steps ?? 0)}.`}
      </p>
    </>
  );
}

function Outcome({ words, outcome }: { words: string; outcome: IntervalOutcome }) {
  return (
    <tr>
      <td>{words}</td>
      <td className="number">{ratioWords(outcome.goodput)}</td>
      <td className="number">{duration(outcome.wall_milliseconds / 1000)}</td>
      <td className="number">{count(outcome.lost_steps)}</td>
      <td className="number">{duration(outcome.save_stall_milliseconds / 1000)}</td>
    </tr>
  );
}

/** `96.3 % with saves every 100 steps, `; empty if unknown, such as without saves. */
function expected({ expected_ettr: ettr }: IntervalOutcome, steps: number): string {
  return ettr === null ? "" : `${ratioWords(ettr)} with saves ${every(steps)}, `;
}

function every(steps: number): string {
  return steps === 0 ? "none" : `every ${plural(steps, "step")}`;
}
