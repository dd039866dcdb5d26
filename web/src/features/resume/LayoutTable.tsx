// The legal layouts of each number of slots, or the reason why none is legal; one is selected.
import { type ReactNode, useEffect, useRef, useState } from "react";
import type { AnyPlan } from "@/shared/api/types";
import { bytes, NONE, percent, plural, short } from "@/shared/format/numbers";
import { Badge } from "@/shared/ui/Badge";
import { Button } from "@/shared/ui/Button";
import { cx } from "@/shared/ui/cx";
import {
  type Group,
  groupsOf,
  idleShare,
  type LayoutOption,
  pipelineWords,
  type Row,
} from "./layouts";

interface LayoutTableProps {
  rows: readonly Row[];
  chosen: Row | undefined;
  onChoose: (row: Row) => void;
  /** Plan of the chosen row with the typed values; null until it is known. */
  plan: AnyPlan | null;
  /** Memory of the smallest slot, in bytes; null if unknown. */
  deviceMemory: number | null;
  /** Whether the job runs: layouts slower than the present one are marked. */
  isResize: boolean;
}

export function LayoutTable(props: LayoutTableProps) {
  const { rows, chosen, onChoose, plan, deviceMemory, isResize } = props;
  const frame = useRef<HTMLFieldSetElement>(null);
  const isReady = chosen !== undefined;
  const speedNow = isResize ? speedOf(rows.find((row) => row.isBefore)) : 0;
  useEffect(() => {
    if (!isReady) return;
    const chosenRow = frame.current?.querySelector(".resume-chosen");
    chosenRow?.scrollIntoView({ block: "nearest" });
    // After the dialog has opened; a control that the person has focused meanwhile keeps the focus.
    const timer = setTimeout(() => {
      if (document.activeElement?.matches("dialog h2")) chosenRow?.querySelector("input")?.focus();
    });
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
      {groupsOf(rows, chosen).map((group) => (
        <Size key={group.worldSize} group={group}>
          {(row) =>
            row.option ? (
              <LayoutRow
                key={row.key}
                row={row}
                shown={row.key === chosen?.key && plan?.kind === "trainer" ? plan : row.option}
                isChosen={row.key === chosen?.key}
                onChoose={() => onChoose(row)}
                deviceMemory={deviceMemory}
                isSlower={speedOf(row) < speedNow}
              />
            ) : (
              <div key={row.key} className="resume-row muted">
                <span />
                <span>{row.worldSize}</span>
                <span className="resume-why small">{row.reason}</span>
              </div>
            )
          }
        </Size>
      ))}
    </fieldset>
  );
}

function speedOf(row: Row | undefined): number {
  return row?.option?.speed?.tokens_per_second ?? 0;
}

interface SizeProps {
  group: Group;
  children: (row: Row) => ReactNode;
}

/** The layouts of one number of slots; further layouts are shown on demand. */
function Size({ group, children }: SizeProps) {
  const [isOpen, setIsOpen] = useState(false);
  const { listed, others, worldSize } = group;
  const last = [...listed, ...others].find((row) => row.more > 0);
  return (
    <>
      {listed.map(children)}
      {isOpen && others.map(children)}
      {isOpen && last && <MoreLayouts row={last} />}
      {others.length > 0 && (
        <div className="resume-row muted">
          <span />
          <span className="resume-again">{worldSize}</span>
          <span className="resume-why small">
            <Button look="quiet" small aria-expanded={isOpen} onClick={() => setIsOpen(!isOpen)}>
              {isOpen ? "Fewer layouts" : plural(others.length, "other layout")} on{" "}
              {plural(worldSize, "slot")}
            </Button>
          </span>
        </div>
      )}
    </>
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

/** The values of a row, from a layout or from its plan. */
type Shown = Pick<LayoutOption, "name" | "batch" | "pipeline" | "memory" | "fits">;

interface LayoutRowProps {
  row: Row;
  shown: Shown;
  isChosen: boolean;
  onChoose: () => void;
  deviceMemory: number | null;
  isSlower: boolean;
}

function LayoutRow(props: LayoutRowProps) {
  const { row, shown, isChosen, onChoose, deviceMemory, isSlower } = props;
  const { batch } = shown;
  const idle = idleShare(shown);
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
          <small className="small">
            ≈ {short(row.option.speed.tokens_per_second)} tokens/s{isSlower && ", slower than now"}
          </small>
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
      <span
        className={cx("resume-idle", batch && idle > 0 && "resume-some tone-warn")}
        title="Empty sequence slots, and the bubble of the pipeline"
      >
        {batch ? percent(idle) : NONE}
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
