// Search, project, states and tags of the jobs table.
import { useQuery } from "@tanstack/react-query";
import {
  EVERYONE,
  type JobFilter,
  jobCountsQuery,
  legalSearch,
  ownerOf,
  projectsQuery,
} from "@/shared/api/queries";
import { jobStateValues } from "@/shared/api/schema";
import { BUILT_IN, useIsShared } from "@/shared/api/useMay";
import { useDraft } from "@/shared/api/useSettled";
import { count } from "@/shared/format/numbers";
import { STATE_TONES } from "@/shared/ui/Badge";
import { Button } from "@/shared/ui/Button";
import { cx } from "@/shared/ui/cx";
import { StateGlyph } from "@/shared/ui/StateGlyph";
import { toggled } from "./filter";
import { SEARCH_ID } from "./useJobKeys";

const TYPING_MILLISECONDS = 200;

interface FilterProps {
  filter: JobFilter;
  onChange: (filter: JobFilter) => void;
}

interface FilterBarProps extends FilterProps {
  /** Name of the reader, on a server of several people. */
  person: string | null;
}

export function FilterBar({ filter, person, onChange }: FilterBarProps) {
  const isShared = useIsShared();
  const { data: counts } = useQuery({ ...jobCountsQuery(filter), placeholderData: (last) => last });
  return (
    <search className="toolbar" aria-label="Filter jobs">
      <Search filter={filter} onChange={onChange} />
      <ProjectChoice filter={filter} onChange={onChange} />
      {isShared && <OwnerChoice filter={filter} mine={person ?? BUILT_IN} onChange={onChange} />}
      <fieldset className="segments">
        <legend className="visually-hidden">State</legend>
        {jobStateValues.map((state) => (
          <button
            key={state}
            type="button"
            className="segment"
            aria-pressed={filter.states.includes(state)}
            onClick={() => onChange({ ...filter, states: toggled(filter.states, state) })}
          >
            <span className={cx("filter-glyph", `tone-${STATE_TONES[state]}`)}>
              <StateGlyph state={state} />
            </span>
            {state}
            {counts && <span className="filter-count faint">{count(counts[state] ?? 0)}</span>}
          </button>
        ))}
      </fieldset>
      {filter.tags.map((tag) => (
        <Button
          key={tag}
          small
          aria-label={`Remove the tag ${tag} from the filter`}
          onClick={() => onChange({ ...filter, tags: toggled(filter.tags, tag) })}
        >
          {tag} <span aria-hidden="true">✕</span>
        </Button>
      ))}
    </search>
  );
}

/** Shown if several projects exist; an unknown project of the URL stays in the list. */
function ProjectChoice({ filter, onChange }: FilterProps) {
  const { data: projects = [] } = useQuery(projectsQuery);
  const names = projects.map((project) => project.name);
  if (filter.project && !names.includes(filter.project)) names.push(filter.project);
  if (names.length < 2) return null;
  return (
    <select
      className="select filter-project"
      aria-label="Project"
      value={filter.project}
      onChange={(event) => onChange({ ...filter, project: event.target.value })}
    >
      <option value="">All projects</option>
      {names.map((name) => (
        <option key={name}>{name}</option>
      ))}
    </select>
  );
}

/** The own jobs, those of everyone, or those of the person in the URL. */
function OwnerChoice({ filter, mine, onChange }: FilterProps & { mine: string }) {
  const owner = ownerOf(filter);
  const choices: [string, string][] = [
    [mine, "mine"],
    [EVERYONE, "everyone"],
  ];
  if (owner !== null && owner !== mine) choices.push([owner, owner]);
  return (
    <fieldset className="segments">
      <legend className="visually-hidden">Owner</legend>
      {choices.map(([name, words]) => (
        <button
          key={name}
          type="button"
          className="segment"
          aria-pressed={(owner ?? EVERYONE) === name}
          onClick={() => onChange({ ...filter, owner: name })}
        >
          {words}
        </button>
      ))}
    </fieldset>
  );
}

/** A search field: typed text enters the filter after a short pause, and follows other changes of it. */
function Search({ filter, onChange }: FilterProps) {
  const search = (text: string) => onChange({ ...filter, search: text });
  const [typed, setTyped] = useDraft(filter.search, search, TYPING_MILLISECONDS);
  return (
    <div className="filter-search">
      <input
        id={SEARCH_ID}
        className="input"
        type="search"
        placeholder="Name, tag, id, lr=0.01"
        aria-label="Search by words of names and tags, the beginning of an id, or a value such as lr=0.01"
        aria-keyshortcuts="/"
        autoComplete="off"
        spellCheck={false}
        value={typed}
        onChange={(event) => setTyped(legalSearch(event.target.value))}
      />
      <span className="filter-key mono" aria-hidden="true">
        /
      </span>
    </div>
  );
}
