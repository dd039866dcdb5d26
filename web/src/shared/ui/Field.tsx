// A labelled control with its unit, help and problems; a labelled choice; a labelled value.
import { type ReactNode, useId } from "react";
import { cx } from "./cx";
import "./Field.css";

interface FieldProps {
  /** Id of the labelled control. */
  htmlFor: string;
  label: ReactNode;
  help?: ReactNode;
  error?: ReactNode;
  /** A legal value that is probably a mistake. */
  warning?: ReactNode;
  children: ReactNode;
  className?: string;
}

/** A labelled control, which must have `${htmlFor}-said` in its `aria-describedby`. */
export function Field({ htmlFor, label, help, error, warning, children, className }: FieldProps) {
  return (
    <div className={cx("field", Boolean(error) && "field-wrong", className)}>
      <label className="field-label" htmlFor={htmlFor}>
        {label}
      </label>
      <div className="field-control row">{children}</div>
      <div className="small" id={`${htmlFor}-said`}>
        {error && <p className="field-error">{error}</p>}
        {warning && <p className="field-warning">{warning}</p>}
        {help && <p className="field-help">{help}</p>}
      </div>
    </div>
  );
}

/** A pair of a description list. */
export function Fact({ name, children }: { name: string; children: ReactNode }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

interface ChoiceProps {
  label: string;
  value: number;
  onChange: (value: number) => void;
  options: readonly (readonly [number, string])[];
}

/** A number chosen from a list, with its label at the left. */
export function Choice({ label, value, onChange, options }: ChoiceProps) {
  const id = useId();
  return (
    <div className="choice-field">
      <label htmlFor={id}>{label}</label>
      <select
        id={id}
        className="select"
        value={value}
        onChange={(event) => onChange(Number(event.target.value))}
      >
        {options.map(([option, words]) => (
          <option key={option} value={option}>
            {words}
          </option>
        ))}
      </select>
    </div>
  );
}
