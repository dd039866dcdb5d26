// Searches a whole log, and moves from match to match.
import type { KeyboardEvent } from "react";
import { useDraft } from "@/shared/api/useSettled";
import { count } from "@/shared/format/numbers";
import { Button } from "@/shared/ui/Button";
import { nextMatch } from "./text";
import type { Matches } from "./useLog";

const TYPING_MILLISECONDS = 300;

interface SearchBoxProps {
  search: string;
  onSearch: (text: string) => void;
  matches: Matches;
  selected: number | null;
  onSelect: (line: number) => void;
}

export function SearchBox({ search, onSearch, matches, selected, onSelect }: SearchBoxProps) {
  const [text, setText] = useDraft(search, onSearch, TYPING_MILLISECONDS);
  const go = (by: 1 | -1) => {
    const line = nextMatch(matches.lines, selected, by);
    if (line !== null) onSelect(line);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    if (text === search) go(event.shiftKey ? -1 : 1);
    else onSearch(text);
  };
  return (
    <search className="log-search row">
      <input
        className="input"
        type="search"
        placeholder="Search the whole log"
        aria-label="Search the whole log; Enter goes to the next match"
        maxLength={200}
        value={text}
        onChange={(event) => setText(event.target.value)}
        onKeyDown={onKeyDown}
      />
      <Button
        small
        aria-label="Previous match"
        disabled={matches.lines.length === 0}
        onClick={() => go(-1)}
      >
        ↑
      </Button>
      <Button
        small
        aria-label="Next match"
        disabled={matches.lines.length === 0}
        onClick={() => go(1)}
      >
        ↓
      </Button>
      <span className="log-found" role="status">
        {search !== "" && found(matches, selected)}
      </span>
    </search>
  );
}

function found({ lines, isSearching, isCut }: Matches, selected: number | null): string {
  if (lines.length === 0) return isSearching ? "searching…" : "no match";
  const at = selected === null ? -1 : lines.indexOf(selected);
  const total = `${count(lines.length)}${isCut || isSearching ? "+" : ""}`;
  return at >= 0 ? `${count(at + 1)} of ${total}` : `${total} lines`;
}
