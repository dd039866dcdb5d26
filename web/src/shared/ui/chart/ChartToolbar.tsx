// How charts are drawn: logarithm, full range, and the stretch of the axis that is shown.
import type { ReactNode } from "react";
import { Button } from "../Button";
import { type Axis, stretchText } from "./axis";
import type { Extent } from "./curve";
import { Smoothing } from "./Smoothing";

interface ChartView {
  isLog: boolean;
  /** Whether values far from the usual ones shape the axis too. */
  isFull: boolean;
  /** Weight of the past in the moving average; 0 is none. */
  smoothing: number;
  /** Stretch of the axis that is shown; all of it when null. */
  range: Extent | null;
}

interface ChartToolbarProps {
  view: ChartView;
  axis: Axis;
  change: (changes: Partial<Omit<ChartView, "range">> & { range?: null }) => void;
  /** Controls of the page. */
  children: ReactNode;
}

export function ChartToolbar({ view, axis, change, children }: ChartToolbarProps) {
  const { isLog, isFull, range, smoothing } = view;
  return (
    <div className="toolbar">
      {children}
      <Button
        small
        aria-pressed={isLog}
        title="Values on a logarithmic axis"
        onClick={() => change({ isLog: !isLog })}
      >
        log y
      </Button>
      <Button
        small
        aria-pressed={isFull}
        title="Values far from the usual ones shape the axis too"
        onClick={() => change({ isFull: !isFull })}
      >
        full range
      </Button>
      <Smoothing weight={smoothing} onChange={(weight) => change({ smoothing: weight })} />
      {range ? (
        <>
          <span>{stretchText(axis, range)}</span>
          <Button small onClick={() => change({ range: null })}>
            Show all
          </Button>
        </>
      ) : (
        <span className="muted chart-hint">Drag over a chart to zoom, double-click for all.</span>
      )}
    </div>
  );
}
