// The legal layouts of each number of slots, or the reason why there is none; one is selected.
import { Fragment, useEffect, useRef } from "react";
import type { AnyPlan } from "@/shared/api/types";
import { bytes, NONE, percent, plural, short } from "@/shared/format/numbers";
import { Badge } from "@/shared/ui/Badge";
import { cx } from "@/shared/ui/cx";
import { type LayoutOption, pipelineWords, type Row } from "./layouts";

interface LayoutTableProps {
  rows: readonly Row[];
  chosen: Row | undefined;
  onChoose: (row: Row) => void;
  /** Plan of the chosen row with the typed values; null until it is known. */
  plan: AnyPlan | null;
  /** Memory of the smallest slot, in bytes; null when it is not known. */
  deviceMemory: number | null;
}

export function LayoutTable({ rows, chosen, onChoose, plan, deviceMemory }: LayoutTableProps) {
  const frame = useRef<HTMLFieldSetElement>(null);
  const isReady = chosen !== undefined;
  useEffect(() => {
    if (!isReady) return;
    const chosenRow = frame.current?.querySelector(".resume-chosen");
    chosenRow?.scrollIntoView({ block: "nearest" });
    // After the dialog has opened, which gives the focus to its first button.
    const timer = setTimeout(() => chosenRow?.querySelector("input")?.focus());
    return () => clearTimeout(timer);
  }, [isReady]);
  return (
    <fieldset className="resume-layouts panel" ref={frame}>
      <legend className="visually-hidden">Slots and layout</legend>
      <div className="resume-row resume-head faint" aria-hidden="true">
        <span />
        <span>Slots</span>
        <span>Layout</span>
        <span>Micro-batch</span>
        <span>Idle</span>
        <span>Memory per slot</span>
        <span>Availability</span>
      </div>
      {rows.map((row) =>
        row.option ? (
          <Fragment key={row.key}>
            <LayoutRow
              row={row}
              shown={row.key === chosen?.key && plan?.kind === "trainer" ? plan : row.option}
              isChosen={row.key === chosen?.key}
              onChoose={() => onChoose(row)}
              deviceMemory={deviceMemory}
            />
            {row.more > 0 && <MoreLayouts row={row} />}
          </Fragment>
        ) : (
          <div key={row.key} className="resume-row muted">
            <span />
            <span>{row.worldSize}</span>
            <span className="resume-why small">{row.reason}</span>
          </div>
        ),
      )}
    </fieldset>
  );
}

/** The server cuts a long list; a command line can name the other layouts. */
function MoreLayouts({ row }: { row: Row }) {
  return (
    <div className="resume-row muted">
      <span />
      <span className="resume-again">{row.worldSize}</span>
      <span className="resume-why small">
        and {plural(row.more, "more layout")}, by command line: <code>--set parallelism.…</code>
      </span>
    </div>
  );
}

/** The values that a row shows, of a layout or of its plan. */
type Shown = Pick<LayoutOption, "name" | "batch" | "pipeline" | "memory" | "fits">;

interface LayoutRowProps {
  row: Row;
  shown: Shown;
  isChosen: boolean;
  onChoose: () => void;
  deviceMemory: number | null;
}

function LayoutRow({ row, shown, isChosen, onChoose, deviceMemory }: LayoutRowProps) {
  const { batch } = shown;
  return (
    <label className={cx("resume-row", isChosen && "resume-chosen")}>
      <input
        type="radio"
        name="layout"
        checked={isChosen}
        onChange={onChoose}
        data-world-size={row.worldSize}
        data-layout={shown.name}
      />
      <span className={cx("resume-slots", !row.isFirst && "resume-again")}>{row.worldSize}</span>
      <span className="resume-layout">
        {shown.name} {row.isBefore && <Badge tone="accent">as before</Badge>}
        {shown.pipeline && <small className="small">{pipelineWords(shown.pipeline)}</small>}
        {row.option?.speed && (
          <small className="small">≈ {short(row.option.speed.tokens_per_second)} tokens/s</small>
        )}
      </span>
      <span className="resume-batch">
        {batch ? (
          <>
            {batch.micro_batch_size}{" "}
            <small className="small">× {plural(batch.rounds, "round")}</small>
          </>
        ) : (
          NONE
        )}
      </span>
      <span className={cx("resume-idle", batch && batch.idle_share > 0 && "resume-some tone-warn")}>
        {batch ? percent(batch.idle_share) : NONE}
      </span>
      <Memory shown={shown} deviceMemory={deviceMemory} />
      <span className={cx("resume-availability", row.freeNow ? "tone-ok" : "muted")}>
        {row.freeNow ? "free now" : "waits"}
      </span>
    </label>
  );
}

function Memory({ shown, deviceMemory }: { shown: Shown; deviceMemory: number | null }) {
  if (!shown.memory) return <span className="resume-memory">{NONE}</span>;
  const { total } = shown.memory;
  const isOver = shown.fits === false;
  const share = deviceMemory ? Math.min(total / deviceMemory, 1) : 0;
  return (
    <span className={cx("resume-memory", isOver && "resume-over tone-bad")}>
      <span className="resume-bar" aria-hidden="true">
        <span style={{ width: `${share * 100}%` }} />
      </span>
      <span>
        {bytes(total)}
        {deviceMemory !== null && <small className="small"> of {bytes(deviceMemory)}</small>}
        {isOver && <small className="small"> does not fit</small>}
      </span>
    </span>
  );
}
