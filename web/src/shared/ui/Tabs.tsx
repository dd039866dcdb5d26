// Tabs by the ARIA pattern: one stop of the Tab key, arrow keys move between tabs.
import { type KeyboardEvent, type ReactNode, useId } from "react";
import "./Tabs.css";

export interface Tab<Name extends string> {
  name: Name;
  label: ReactNode;
}

interface TabsProps<Name extends string> {
  label: string;
  tabs: readonly Tab<Name>[];
  active: Name;
  onSelect: (name: Name) => void;
  /** Content of the active tab. */
  children: ReactNode;
}

const MOVES: Record<string, (index: number, last: number) => number> = {
  ArrowLeft: (index, last) => (index === 0 ? last : index - 1),
  ArrowRight: (index, last) => (index === last ? 0 : index + 1),
  Home: () => 0,
  End: (_, last) => last,
};

/** Scroll the active tab into view: on a narrow screen the tabs scroll. */
function intoSight(tab: HTMLElement | null): void {
  tab?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

/** A row of tabs; the caller keeps the active one, best in the URL. */
export function Tabs<Name extends string>({
  label,
  tabs,
  active,
  onSelect,
  children,
}: TabsProps<Name>) {
  const id = useId();
  const onKeyDown = (event: KeyboardEvent<HTMLElement>) => {
    const move = MOVES[event.key];
    if (!move) return;
    event.preventDefault();
    const index = tabs.findIndex((tab) => tab.name === active);
    const next = tabs[move(index, tabs.length - 1)];
    if (!next) return;
    onSelect(next.name);
    document.getElementById(`${id}-${next.name}`)?.focus();
  };
  return (
    <>
      <div className="tabs" role="tablist" aria-label={label} onKeyDown={onKeyDown}>
        {tabs.map((tab) => (
          <button
            key={tab.name}
            id={`${id}-${tab.name}`}
            type="button"
            role="tab"
            className="tab"
            aria-selected={tab.name === active}
            aria-controls={`${id}-panel`}
            ref={tab.name === active ? intoSight : undefined}
            tabIndex={tab.name === active ? 0 : -1}
            onClick={() => onSelect(tab.name)}
          >
            {tab.label}
          </button>
        ))}
      </div>
      <div id={`${id}-panel`} role="tabpanel" aria-labelledby={`${id}-${active}`}>
        {children}
      </div>
    </>
  );
}
