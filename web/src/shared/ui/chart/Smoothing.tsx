// The weight of the past in a moving average.
import { useId } from "react";
import { useDraft } from "@/shared/api/useSettled";
import { fixed } from "@/shared/format/numbers";
import { MAX_SMOOTHING } from "./values/smoothed";

const REST_MILLISECONDS = 120;

interface SmoothingProps {
  weight: number;
  onChange: (weight: number) => void;
}

/** A slider that shows its value immediately, and writes it to the URL after a short pause. */
export function Smoothing({ weight, onChange }: SmoothingProps) {
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
        max={MAX_SMOOTHING}
        step={0.01}
        value={dragged}
        onChange={(event) => setDragged(Number(event.target.value))}
      />
      <output htmlFor={id}>{fixed(dragged, 2)}</output>
    </span>
  );
}
