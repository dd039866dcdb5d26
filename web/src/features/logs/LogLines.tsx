// The lines of a log in a scrolling box: only visible lines are rendered.
import { type RefObject, useEffect, useLayoutEffect, useRef, useState } from "react";
import { count } from "@/shared/format/numbers";
import { cx } from "@/shared/ui/cx";
import { looksLikeError, partsOf, plainText, ROW_CHARACTERS } from "./text";
import { type LogName, type LogPage, useLogLines } from "./useLog";
import { contentHeight, type Geometry, isAtEnd, ROW_HEIGHT, scrollTopOf, windowAt } from "./window";

interface LogLinesProps {
  name: LogName;
  tail: LogPage;
  /** The selected line, which is scrolled into view when it changes. */
  selected: number | null;
  onSelect: (line: number) => void;
  search: string;
  /** Whether new lines are scrolled into view. */
  follows: boolean;
  onFollow: (follows: boolean) => void;
}

export function LogLines(props: LogLinesProps) {
  const { name, tail, selected, onSelect, search, follows, onFollow } = props;
  const { first_line: first, total_lines: total } = tail;
  const box = useRef<HTMLDivElement>(null);
  const height = useHeight(box);
  const [scrollTop, setScrollTop] = useState(0);
  const geometry: Geometry = { first, total, height };
  // A followed log renders its end before the box has scrolled there, so that no other lines are read.
  const shown = windowAt(geometry, follows ? contentHeight(geometry) - height : scrollTop);
  const lines = useLogLines(name, tail, shown.from, shown.to);

  useLayoutEffect(() => {
    if (follows && box.current) box.current.scrollTop = contentHeight({ first, total, height });
  }, [follows, first, total, height]);

  const latest = useRef(geometry);
  latest.current = geometry;
  const isReady = height > 0;
  useLayoutEffect(() => {
    if (selected === null || !isReady || !box.current) return;
    box.current.scrollTop = scrollTopOf(latest.current, selected);
    box.current.scrollIntoView({ block: "nearest" });
  }, [selected, isReady]);

  const before = useRef(0);
  const onScroll = () => {
    if (!box.current) return;
    const at = box.current.scrollTop;
    const isUp = at < before.current;
    before.current = at;
    setScrollTop(at);
    const isEnd = isAtEnd(geometry, at);
    // New lines move the end away without a scroll by the user: only scrolling up stops following.
    if (follows ? isUp && !isEnd : isEnd) onFollow(isEnd);
  };
  const digits = String(total).length;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: the keys that scroll need the focus
    <section className="log-box" ref={box} onScroll={onScroll} tabIndex={0} aria-label="Lines">
      <div className="log-content" style={{ height: contentHeight(geometry) }}>
        <div className="log-rows" style={{ transform: `translateY(${shown.top}px)` }}>
          {range(shown.from, shown.to).map((number) => (
            <Row
              key={number}
              number={number}
              digits={digits}
              text={lines.get(number)}
              isSelected={number === selected}
              search={search}
              onSelect={onSelect}
            />
          ))}
        </div>
      </div>
    </section>
  );
}

interface RowProps {
  number: number;
  digits: number;
  /** Undefined until it is read. */
  text: string | undefined;
  isSelected: boolean;
  search: string;
  onSelect: (line: number) => void;
}

function Row({ number, digits, text, isSelected, search, onSelect }: RowProps) {
  const plain = text === undefined ? "" : plainText(text);
  const cut = plain.slice(0, ROW_CHARACTERS);
  const rest = plain.length - cut.length;
  return (
    <div
      className={cx("log-row", isSelected && "log-selected", looksLikeError(plain) && "log-error")}
      style={{ height: ROW_HEIGHT }}
    >
      <button
        type="button"
        className="log-number"
        style={{ width: `calc(${digits}ch + 20px)` }}
        tabIndex={-1}
        aria-label={`Select line ${number + 1}`}
        onClick={() => onSelect(number)}
      >
        {number + 1}
      </button>
      <span className="log-text">
        {partsOf(cut, search).map((part, index) =>
          // biome-ignore lint/suspicious/noArrayIndexKey: parts of one line stay in their order
          part.isMatch ? <mark key={index}>{part.text}</mark> : part.text,
        )}
        {rest > 0 && <span className="faint"> … {count(rest)} more characters</span>}
      </span>
    </div>
  );
}

function useHeight(box: RefObject<HTMLElement | null>): number {
  const [height, setHeight] = useState(0);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const watcher = new ResizeObserver(() => setHeight(element.clientHeight));
    watcher.observe(element);
    return () => watcher.disconnect();
  }, [box]);
  return height;
}

function range(from: number, to: number): number[] {
  return Array.from({ length: to - from }, (_, index) => from + index);
}
