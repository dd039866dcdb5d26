// How the curves are drawn: axis, logarithm, smoothing, series and the stretch that is shown.
import { useEffect, useId, useState } from "react";
import { useDraft } from "@/shared/api/useSettled";
import { fixed, plural } from "@/shared/format/numbers";
import { AXIS_WORDS, type Axis } from "@/shared/ui/chart/axis";
import { ChartToolbar } from "@/shared/ui/chart/ChartToolbar";
import { Popover } from "@/shared/ui/Popover";
import { type CompareView, MOST_NAMES, MOST_SMOOTHING } from "@/shared/url/pages";
import type { ChangeView } from "./view";

interface ToolbarProps {
  view: CompareView;
  change: ChangeView;
  /** Series of any of the jobs. */
  known: readonly string[];
  /** Series that are drawn. */
  names: readonly string[];
}

export function Toolbar({ view, change, known, names }: ToolbarProps) {
  return (
    <ChartToolbar view={view} axis={view.axis} change={change}>
      <AxisChoice axis={view.axis} onChange={(axis) => change({ axis, range: null })} />
      <Smoothing weight={view.smoothing} onChange={(smoothing) => change({ smoothing })} />
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

const REST_MILLISECONDS = 120;

/** What is dragged is shown at once in words, and goes into the URL after a short rest. */
function Smoothing({ weight, onChange }: { weight: number; onChange: (weight: number) => void }) {
  const id = useId();
  const [dragged, setDragged] = useDraft(weight, onChange, REST_MILLISECONDS);
  return (
    <span className="smoothing row">
      <label htmlFor={id} title="Exponential moving average; the raw curve stays visible behind it">
        Smoothing
      </label>
      <input
        id={id}
        type="range"
        min={0}
        max={MOST_SMOOTHING}
        step={0.01}
        value={dragged}
        onChange={(event) => setDragged(Number(event.target.value))}
      />
      <output htmlFor={id}>{fixed(dragged, 2)}</output>
    </span>
  );
}

interface MetricChoiceProps {
  known: readonly string[];
  names: readonly string[];
  onChange: (names: readonly string[]) => void;
}

/** What is ticked is shown at once; the URL, and the charts with it, follow. */
function MetricChoice({ known, names, onChange }: MetricChoiceProps) {
  const [ticked, setTicked] = useState(names);
  useEffect(() => setTicked(names), [names]);
  const isFull = ticked.length >= MOST_NAMES;
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
      {isFull && <p className="muted">{plural(MOST_NAMES, "chart")} at most.</p>}
    </div>
  );
}
