// Drawing options of the curves: axis, logarithm, smoothing, series and visible stretch.
import { useEffect, useState } from "react";
import { plural } from "@/shared/format/numbers";
import { AXIS_WORDS, type Axis } from "@/shared/ui/chart/axis";
import { ChartToolbar } from "@/shared/ui/chart/ChartToolbar";
import { Popover } from "@/shared/ui/Popover";
import { type CompareView, MAX_NAMES } from "@/shared/url/pages";
import type { ChangeView } from "./view";

interface ToolbarProps {
  view: CompareView;
  change: ChangeView;
  /** Series of any of the jobs. */
  known: readonly string[];
  /** Drawn series. */
  names: readonly string[];
}

export function Toolbar({ view, change, known, names }: ToolbarProps) {
  return (
    <ChartToolbar view={view} axis={view.axis} change={change}>
      <AxisChoice axis={view.axis} onChange={(axis) => change({ axis, range: null })} />
      <Popover
        button={`Metrics: ${names.length} of ${known.length}`}
        buttonClassName="button button-small"
        label="Metrics"
      >
        <MetricChoice
          known={known}
          names={names}
          onChange={(chosen) => change({ names: chosen })}
        />
      </Popover>
    </ChartToolbar>
  );
}

function AxisChoice({ axis, onChange }: { axis: Axis; onChange: (axis: Axis) => void }) {
  return (
    <fieldset className="segments segments-small">
      <legend className="visually-hidden">Horizontal axis</legend>
      {(Object.keys(AXIS_WORDS) as Axis[]).map((each) => (
        <button
          key={each}
          type="button"
          className="segment"
          aria-pressed={each === axis}
          onClick={() => onChange(each)}
        >
          {AXIS_WORDS[each]}
        </button>
      ))}
    </fieldset>
  );
}

interface MetricChoiceProps {
  known: readonly string[];
  names: readonly string[];
  onChange: (names: readonly string[]) => void;
}

/** The choice of series: ticks show immediately, the URL and the charts follow. */
function MetricChoice({ known, names, onChange }: MetricChoiceProps) {
  const [ticked, setTicked] = useState(names);
  useEffect(() => setTicked(names), [names]);
  const isFull = ticked.length >= MAX_NAMES;
  const toggle = (name: string) => {
    const isThere = ticked.includes(name);
    const next = isThere ? ticked.filter((each) => each !== name) : [...ticked, name];
    setTicked(next);
    onChange(next);
  };
  return (
    <div className="metric-choice">
      {known.length === 0 && <p className="muted">No job has a point yet.</p>}
      {known.map((name) => (
        <label key={name}>
          <input
            type="checkbox"
            checked={ticked.includes(name)}
            disabled={isFull && !ticked.includes(name)}
            onChange={() => toggle(name)}
          />
          {name}
        </label>
      ))}
      {isFull && <p className="muted">{plural(MAX_NAMES, "chart")} at most.</p>}
    </div>
  );
}
