// Chooses one artifact of a sequence: the newest until a person moves the slider.
import { useId, useState } from "react";
import type { Artifact } from "@/shared/api/types";
import { count } from "@/shared/format/numbers";

/** Return the chosen artifact, and the function to choose another one. */
export function useChosen(
  items: readonly Artifact[],
): [Artifact | undefined, (at: number) => void] {
  const [id, setId] = useState<string | null>(null);
  const chosen = items.find((item) => item.id === id) ?? items.at(-1);
  // At its end the slider follows new artifacts.
  return [chosen, (at) => setId(at === items.length - 1 ? null : (items[at]?.id ?? null))];
}

interface StepSliderProps {
  name: string;
  items: readonly Artifact[];
  chosen: Artifact;
  onChoose: (at: number) => void;
}

export function StepSlider({ name, items, chosen, onChoose }: StepSliderProps) {
  const id = useId();
  const at = items.indexOf(chosen);
  return (
    <div className="artifact-slider row">
      {items.length > 1 && (
        <input
          id={id}
          type="range"
          min={0}
          max={items.length - 1}
          value={at}
          aria-label={`Step of ${name}`}
          aria-valuetext={placeOf(chosen)}
          onChange={(event) => onChoose(Number(event.target.value))}
        />
      )}
      <span className="muted small">
        {placeOf(chosen)}
        {items.length > 1 && ` (${at + 1}/${items.length})`}
      </span>
    </div>
  );
}

function placeOf({ step, attempt }: Artifact): string {
  const place = step === null ? "no step" : `step ${count(step)}`;
  return attempt > 1 ? `${place}, attempt ${attempt}` : place;
}
