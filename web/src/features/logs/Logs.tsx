// The logs of a job: one rank of one attempt at a time, with search, follow and a jump to the first error.
import { useQuery } from "@tanstack/react-query";
import { type RefObject, useEffect, useRef, useState } from "react";
import type { Attempt, Job } from "@/shared/api/types";
import { bytes, count } from "@/shared/format/numbers";
import { command } from "@/shared/format/shell";
import { attemptsQuery } from "@/shared/job/api";
import { useReference } from "@/shared/job/reference";
import { useView, type View } from "@/shared/job/view";
import { Button } from "@/shared/ui/Button";
import { CommandLine, CopyButton } from "@/shared/ui/CommandLine";
import { Choice } from "@/shared/ui/Field";
import { Absent, EmptyState, ErrorState } from "@/shared/ui/Notice";
import { LogLines } from "./LogLines";
import { SearchBox } from "./SearchBox";
import { plainText } from "./text";
import { type LogName, type LogPage, useLogLines, useLogSearch, useLogTail } from "./useLog";
import "./logs.css";

export function Logs({ job }: { job: Job }) {
  const view = useView();
  const attempts = useQuery(attemptsQuery(job.id));
  if (!attempts.data) return <Absent query={attempts} lines={16} />;
  const wanted = view.attempt;
  const attempt = attempts.data.find((one) => one.number === wanted) ?? attempts.data[0];
  if (!attempt) {
    return (
      <EmptyState title="No logs yet">
        <p>The job waits for its slots. Its output appears here when the ranks start.</p>
      </EmptyState>
    );
  }
  const rank = view.rank ?? attempt.failure?.rank ?? 0;
  const name = { jobId: job.id, attempt: attempt.number, rank };
  return (
    <RankLog
      key={`${attempt.number}/${rank}`}
      name={name}
      job={job}
      attempts={attempts.data}
      attempt={attempt}
      view={view}
    />
  );
}

interface RankLogProps {
  name: LogName;
  job: Job;
  attempts: readonly Attempt[];
  attempt: Attempt;
  view: View;
}

function RankLog({ name, job, attempts, attempt, view }: RankLogProps) {
  const tail = useLogTail(name);
  const search = view.search ?? "";
  const matches = useLogSearch(name, search);
  const selected = selectedLine(view, tail.data);
  const frame = useFill();
  const [follows, setFollows] = useState(view.line === null);
  const select = (line: number | null) => {
    if (line !== null) setFollows(false);
    view.change({ line: line === null ? null : line + 1 });
  };
  useErrorLine(view, tail.data);
  return (
    <>
      <div className="toolbar">
        <Choice
          label="Attempt"
          value={attempt.number}
          onChange={(number) => view.change({ attempt: number, rank: null, line: null })}
          options={attempts.map((one) => [one.number, `${one.number} · ${one.layout_name}`])}
        />
        <Choice
          label="Rank"
          value={name.rank}
          onChange={(rank) => view.change({ attempt: attempt.number, rank, line: null })}
          options={ranksOf(tail.data, name.rank).map((rank) => [rank, rankWords(rank, attempt)])}
        />
        <Button
          disabled={tail.data?.first_error_line == null}
          onClick={() => select(tail.data?.first_error_line ?? null)}
        >
          First error
        </Button>
        <SearchBox
          search={search}
          onSearch={(q) => view.change({ search: q })}
          matches={matches}
          selected={selected}
          onSelect={select}
        />
        {attempt.ended_at === null && (
          <label className="log-follow row">
            <input
              type="checkbox"
              checked={follows}
              onChange={(event) => setFollows(event.target.checked)}
            />
            Follow
          </label>
        )}
      </div>
      {tail.isError ? (
        <ErrorState error={tail.error} onRetry={() => void tail.refetch()} />
      ) : (
        <div className="log-frame panel" ref={frame}>
          {tail.data && <Dropped tail={tail.data} />}
          {tail.data && <BeyondTheEnd tail={tail.data} line={lineOf(view)} />}
          {tail.data?.total_lines === 0 && <NoLines attempt={attempt} />}
          {tail.data && tail.data.total_lines > 0 && (
            <LogLines
              name={name}
              tail={tail.data}
              selected={selected}
              onSelect={(line) => select(line === selected ? null : line)}
              search={search}
              follows={follows}
              onFollow={setFollows}
            />
          )}
          {tail.data && selected !== null && (
            <WholeLine name={name} tail={tail.data} line={selected} onClose={() => select(null)} />
          )}
        </div>
      )}
      <LogCommand job={job} name={name} search={search} />
    </>
  );
}

/** Set an element's offset from the top of the page as a CSS variable, so that it fills the window below. */
function useFill(): RefObject<HTMLDivElement | null> {
  const element = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const measure = () => {
      if (!element.current) return;
      const top = element.current.getBoundingClientRect().top + window.scrollY;
      element.current.style.setProperty("--top", `${top}px`);
    };
    const watcher = new ResizeObserver(measure); // content above may grow
    watcher.observe(document.body);
    return () => watcher.disconnect();
  }, []);
  return element;
}

/** Return the stored line nearest to the line of the URL, which counts from 1 like the rows. */
function selectedLine(view: View, tail: LogPage | undefined): number | null {
  const line = lineOf(view);
  if (line === null || !tail || tail.total_lines === 0) return null;
  return Math.max(Math.min(line, tail.total_lines) - 1, tail.first_line);
}

/** The number of a line in the URL. */
function lineOf({ line }: View): number | null {
  return typeof line === "number" ? line : null;
}

/** Replace `line=error` in the URL by the first error, once its number is known. */
function useErrorLine(view: View, tail: LogPage | undefined): void {
  const isWanted = view.line === "error";
  useEffect(() => {
    if (!isWanted || !tail) return;
    view.change({ line: tail.first_error_line === null ? null : tail.first_error_line + 1 });
  }, [isWanted, tail, view]);
}

function ranksOf(tail: LogPage | undefined, rank: number): number[] {
  const ranks = tail?.ranks ?? [];
  return ranks.includes(rank) ? ranks : [...ranks, rank].sort((a, b) => a - b);
}

function rankWords(rank: number, attempt: Attempt): string {
  return attempt.failure?.rank === rank ? `${rank} · failed first` : String(rank);
}

function Dropped({ tail }: { tail: LogPage }) {
  if (tail.dropped_bytes === 0) return null;
  return (
    <p className="log-dropped small">
      The first {count(tail.first_line)} lines ({bytes(tail.dropped_bytes)}) exceeded the quota of
      this rank and were dropped.
    </p>
  );
}

function BeyondTheEnd({ tail, line }: { tail: LogPage; line: number | null }) {
  if (line === null || line <= tail.total_lines || tail.total_lines === 0) return null;
  return (
    <p className="log-dropped small" role="status">
      Line {count(line)} does not exist: the log ends at line {count(tail.total_lines)}.
    </p>
  );
}

function NoLines({ attempt }: { attempt: Attempt }) {
  const isLive = attempt.ended_at === null;
  return (
    <EmptyState title={isLive ? "No output yet" : "No output from this rank"}>
      <p>
        {!isLive
          ? "See another rank, or the job's events."
          : attempt.state === "starting"
            ? "The attempt starts: its nodes claim it, unpack what it needs and load torch. The " +
              "events show its progress."
            : "Lines appear when the rank writes them."}
      </p>
    </EmptyState>
  );
}

interface WholeLineProps {
  name: LogName;
  tail: LogPage;
  line: number;
  onClose: () => void;
}

/** The complete selected line: wrapped, with a copy button. */
function WholeLine({ name, tail, line, onClose }: WholeLineProps) {
  const text = useLogLines(name, tail, line, line + 1).get(line);
  return (
    <aside className="log-whole" aria-label={`Line ${line + 1}`}>
      <header className="row">
        <strong>Line {count(line + 1)}</strong>
        {text !== undefined && <CopyButton text={plainText(text)} />}
        <Button look="quiet" small aria-label="Close" onClick={onClose}>
          ✕
        </Button>
      </header>
      <pre>{text === undefined ? "…" : plainText(text)}</pre>
    </aside>
  );
}

function LogCommand({ job, name, search }: { job: Job; name: LogName; search: string }) {
  const reference = useReference(job);
  const words = ["logs", reference, "--attempt", `${name.attempt}`, "--rank", `${name.rank}`];
  return (
    <CommandLine command={command(...words, ...(search ? ["--search", search] : ["--follow"]))} />
  );
}
