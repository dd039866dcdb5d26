// How the curves are drawn: axis, logarithm, smoothing, series and the stretch that is shown.
import { useEffect, useId, useState } from "react";
import { plural } from "@/shared/format/numbers";
import { Button } from "@/shared/ui/Button";
import { AXIS_WORDS, type Axis, stretchText } from "@/shared/ui/chart/axis";
import { FullRange } from "@/shared/ui/chart/FullRange";
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
    <div className="compare-toolbar">
      <AxisChoice axis={view.axis} onChange={(axis) => change({ axis, range: null })} />
      <Button
        small
        aria-pressed={view.isLog}
        title="Values on a logarithmic axis"
        onClick={() => change({ isLog: !view.isLog })}
      >
        log y
      </Button>
      <FullRange isFull={view.isFull} onChange={(isFull) => change({ isFull })} />
      <Smoothing weight={view.smoothing} onChange={(smoothing) => change({ smoothing })} />
      <Popover
        button={`Metrics: ${names.length} of ${known.length}`}
        buttonClassName="button button-plain button-small"
        label="Metrics"
      >
        <MetricChoice
          known={known}
          names={names}
          onChange={(chosen) => change({ names: chosen })}
        />
      </Popover>
      {view.range ? (
        <>
          <span>{stretchText(view.axis, view.range)}</span>
          <Button small onClick={() => change({ range: null })}>
            Show all
          </Button>
        </>
      ) : (
        <span className="muted charts-hint">Drag over a chart to zoom, double-click for all.</span>
      )}
    </div>
  );
}

function AxisChoice({ axis, onChange }: { axis: Axis; onChange: (axis: Axis) => void }) {
  return (
    <fieldset className="axis-choice">
      <legend className="visually-hidden">Horizontal axis</legend>
      {(Object.keys(AXIS_WORDS) as Axis[]).map((each) => (
        <button
          key={each}
          type="button"
          className="axis-button"
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
  const [dragged, setDragged] = useState(weight);
  useEffect(() => setDragged(weight), [weight]);
  useEffect(() => {
    if (dragged === weight) return;
    const timer = setTimeout(() => onChange(dragged), REST_MILLISECONDS);
    return () => clearTimeout(timer);
  }, [dragged, weight, onChange]);
  return (
    <span className="smoothing">
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
      <output htmlFor={id}>{dragged.toFixed(2)}</output>
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
