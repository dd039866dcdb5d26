// Finds a job by name or id: a text field with a list of matching jobs.
import { useInfiniteQuery } from "@tanstack/react-query";
import { type FocusEvent, type KeyboardEvent, useId, useState } from "react";
import { jobsQuery, legalSearch } from "@/shared/api/queries";
import type { JobSummary } from "@/shared/api/types";
import { useSettled } from "@/shared/api/useSettled";
import { StateBadge } from "@/shared/ui/Badge";
import { RelativeTime } from "@/shared/ui/RelativeTime";
import "./FindJob.css";

const TYPING_MILLISECONDS = 200;
const MAX_SHOWN = 8;

interface FindJobProps {
  /** What a choice does, such as `Add a job`. */
  verb: string;
  /** Ids of jobs that the list omits. */
  chosen?: readonly string[];
  /** Why no job can be chosen; null if one can. */
  full?: string | null;
  onFind: (id: string) => void;
}

export function FindJob({ verb, chosen = [], full = null, onFind }: FindJobProps) {
  const list = useId();
  const [typed, setTyped] = useState("");
  const [isOpen, setIsOpen] = useState(false);
  const [marked, setMarked] = useState(0);
  const { jobs, isPending } = useFound(typed, chosen, isOpen);
  const at = Math.min(marked, jobs.length - 1);
  const choose = (job: JobSummary | undefined) => {
    if (!job) return;
    onFind(job.id);
    setTyped("");
    setMarked(0);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const act = KEYS[event.key];
    if (!act) return;
    if (event.key === "Enter") choose(isOpen ? jobs[at] : undefined);
    setIsOpen(act.opens);
    setMarked(Math.max(0, Math.min(at + act.moves, jobs.length - 1)));
    event.preventDefault();
  };
  const onBlur = (event: FocusEvent) => {
    if (!event.currentTarget.contains(event.relatedTarget)) setIsOpen(false);
  };
  return (
    <search className="find-job" onBlur={onBlur}>
      <input
        className="input"
        type="text"
        role="combobox"
        placeholder={full ?? `${verb}: name, tag or id`}
        aria-label={`${verb} by words of its name and tags, or the beginning of its id`}
        aria-expanded={isOpen}
        aria-controls={list}
        aria-autocomplete="list"
        aria-activedescendant={isOpen && jobs[at] ? `${list}-${jobs[at].id}` : undefined}
        autoComplete="off"
        spellCheck={false}
        disabled={full !== null}
        value={typed}
        onChange={(event) => {
          setTyped(legalSearch(event.target.value));
          setMarked(0);
          setIsOpen(true);
        }}
        onFocus={() => setIsOpen(true)}
        onClick={() => setIsOpen(true)}
        onKeyDown={onKeyDown}
      />
      {isOpen && full === null && (
        <div id={list} className="find-list" role="listbox" aria-label="Jobs" tabIndex={-1}>
          {jobs.map((job, index) => (
            <Option
              key={job.id}
              id={`${list}-${job.id}`}
              job={job}
              isMarked={index === at}
              onChoose={() => choose(job)}
              onMark={() => setMarked(index)}
            />
          ))}
          {jobs.length === 0 && <p className="faint">{isPending ? "…" : "No job matches."}</p>}
        </div>
      )}
    </search>
  );
}

const KEYS: Record<string, { moves: number; opens: boolean }> = {
  ArrowDown: { moves: 1, opens: true },
  ArrowUp: { moves: -1, opens: true },
  Enter: { moves: 0, opens: true },
  Escape: { moves: 0, opens: false },
};

interface OptionProps {
  id: string;
  job: JobSummary;
  isMarked: boolean;
  onChoose: () => void;
  onMark: () => void;
}

function Option({ id, job, isMarked, onChoose, onMark }: OptionProps) {
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: the keys belong to the text field
    // biome-ignore lint/a11y/useFocusableInteractive: the focus stays in the text field
    <div
      id={id}
      className="find-option"
      role="option"
      aria-selected={isMarked}
      onPointerDown={(event) => event.preventDefault()}
      onPointerMove={onMark}
      onClick={onChoose}
    >
      <span className="find-name ellipsis">{job.name}</span>
      <StateBadge state={job.state} />
      <span className="find-layout muted ellipsis">{job.layout}</span>
      <RelativeTime at={job.created_at} />
    </div>
  );
}

/** Return the newest jobs that match the typed text, once typing pauses. */
function useFound(typed: string, chosen: readonly string[], isOpen: boolean) {
  const search = useSettled(typed, typed ? TYPING_MILLISECONDS : 0);
  const found = useInfiniteQuery({
    ...jobsQuery({ states: [], tags: [], project: "", search, owner: "" }),
    enabled: isOpen,
    placeholderData: (last) => last,
  });
  const jobs = found.data?.pages.flatMap((page) => page.items) ?? [];
  const others = jobs.filter((job) => !chosen.includes(job.id)).slice(0, MAX_SHOWN);
  return { jobs: others, isPending: found.isPending };
}
