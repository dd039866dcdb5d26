// The choice of what a job runs, first in the form.
interface KindChoiceProps {
  hasProgram: boolean;
  /** Called when the other kind is chosen. */
  onChange: () => void;
}

const KINDS = [
  { name: "Built-in trainer", help: "Trains a language model; the form holds all its settings." },
  { name: "Program", help: "Runs a script or command of your own." },
] as const;

export function KindChoice({ hasProgram, onChange }: KindChoiceProps) {
  return (
    <fieldset className="kinds">
      <legend className="field-label">What runs</legend>
      {KINDS.map(({ name, help }, place) => (
        <label key={name} className="kind panel">
          <input
            type="radio"
            name="kind"
            checked={hasProgram === (place === 1)}
            onChange={onChange}
          />
          <span>
            <strong>{name}</strong>
            <span className="kind-help">{help}</span>
          </span>
        </label>
      ))}
    </fieldset>
  );
}
