// The fastest legal layouts by prediction, and the errors of such predictions.
import { useState } from "react";
import type { Plan, RankedLayout } from "@/shared/api/types";
import { bytes, percent, plural, short } from "@/shared/format/numbers";
import { calibrationWords } from "@/shared/format/prediction";
import { fine } from "@/shared/format/time";
import { cx } from "@/shared/ui/cx";

/** Rows shown at first, in addition to the draft's own layout. */
const FIRST = 6;

interface RankedLayoutsProps {
  plan: Plan;
  /** Write the axes of a layout into the draft. */
  onChoose: (option: RankedLayout) => void;
}

export function RankedLayouts({ plan, onChoose }: RankedLayoutsProps) {
  const [isWhole, setWhole] = useState(false);
  if (!plan.calibration || plan.ranked.length === 0) return null;
  const fastest = Math.max(...plan.ranked.map((option) => option.speed?.tokens_per_second ?? 0));
  const isShown = (option: RankedLayout, index: number) =>
    isWhole || index < FIRST || option.name === plan.name;
  const shown = plan.ranked.filter(isShown);
  const hidden = plan.ranked.length - shown.length;
  return (
    <section className="plan-part" aria-label="Layouts">
      <h3>
        Fastest layouts <span className="muted">of {plural(plan.ranked_of, "legal one")}</span>
      </h3>
      <div className="ranked-row faint" aria-hidden="true">
        <span />
        <span />
        <span className="ranked-speed">tokens/s</span>
        <span className="ranked-memory">memory</span>
      </div>
      <ol className="ranked">
        {shown.map((option) => (
          <LayoutRow
            key={option.name}
            option={option}
            fastest={fastest}
            isOwn={option.name === plan.name}
            onChoose={() => onChoose(option)}
          />
        ))}
      </ol>
      {hidden > 0 && (
        <button type="button" className="link small" onClick={() => setWhole(true)}>
          {plural(hidden, "more layout")}
        </button>
      )}
      <p className="faint small">{calibrationWords(plan.calibration)}</p>
    </section>
  );
}

interface LayoutRowProps {
  option: RankedLayout;
  fastest: number;
  isOwn: boolean;
  onChoose: () => void;
}

function LayoutRow({ option, fastest, isOwn, onChoose }: LayoutRowProps) {
  const { speed, fits, name } = option;
  if (!speed) return null;
  const share = fastest > 0 ? speed.tokens_per_second / fastest : 0;
  return (
    <li className={cx("ranked-row", isOwn && "ranked-own")}>
      <span className="ranked-name">
        {isOwn ? (
          <strong>{name}</strong>
        ) : (
          <button type="button" className="link" onClick={onChoose} title="Use this layout">
            {name}
          </button>
        )}
        {isOwn && <span className="visually-hidden">, this one</span>}
      </span>
      <span className="ranked-bar" aria-hidden="true">
        <span style={{ width: `${share * 100}%` }} />
      </span>
      <span
        className="ranked-speed"
        title={`${fine(speed.step_seconds)} a step; ${spentWords(speed)}`}
      >
        {short(speed.tokens_per_second)}
        <span className="visually-hidden"> tokens/s, </span>
      </span>
      <span className={cx("ranked-memory", fits === false ? "tone-bad" : "muted")}>
        {bytes(speed.memory_bytes)}
        {fits === false && <span className="visually-hidden"> does not fit</span>}
      </span>
    </li>
  );
}

/** `products 61 %, traffic 20 %` */
function spentWords(speed: NonNullable<RankedLayout["speed"]>): string {
  return Object.entries(speed.spent_seconds)
    .sort(([, one], [, other]) => other - one)
    .map(([part, seconds]) => `${part} ${percent(seconds / speed.step_seconds)}`)
    .join(", ");
}
