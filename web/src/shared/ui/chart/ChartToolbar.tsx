// Drawing options of charts: logarithm, full range, and the visible stretch of the axis.
import type { ReactNode } from "react";
import { Button } from "../Button";
import { type Axis, stretchText } from "./axis";
import type { Extent } from "./curve";
import { Smoothing } from "./Smoothing";

interface ChartView {
  isLog: boolean;
  /** Whether the axis includes outliers. */
  isFull: boolean;
  /** Weight of the past in the moving average; 0 for no smoothing. */
  smoothing: number;
  /** Visible stretch of the axis; null for all of it. */
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
        title="The axis includes outliers"
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
        <span className="muted chart-hint">
          Drag over a chart to zoom; double-click to show all.
        </span>
      )}
    </div>
  );
}
