// The limits of a user in a project, as two fields of a form.
import { errorAt } from "@/shared/api/errors";
import { Field } from "@/shared/ui/Field";
import { LIMITS, type Limits, type TypedLimits } from "./limits";

const LABELS = { max_slots: "Most slots", max_running: "Most running jobs" } as const;

interface LimitFieldsProps {
  typed: TypedLimits;
  /** Limits that hold where a field is empty. */
  otherwise: Limits;
  error: unknown;
  onChange: (typed: TypedLimits) => void;
}

export function LimitFields({ typed, otherwise, error, onChange }: LimitFieldsProps) {
  return LIMITS.map((each) => {
    const limit = otherwise[each];
    const id = `limit-${each}`;
    const problem = errorAt(error, `/${each}`);
    return (
      <Field
        key={each}
        htmlFor={id}
        label={LABELS[each]}
        help={
          limit === null ? "Empty for no limit." : `Empty for ${limit}, the limit of each user.`
        }
        error={problem}
      >
        <input
          id={id}
          className="input"
          inputMode="numeric"
          autoComplete="off"
          placeholder={limit === null ? "no limit" : String(limit)}
          value={typed[each]}
          aria-invalid={problem !== undefined}
          aria-describedby={`${id}-said`}
          onChange={(event) => onChange({ ...typed, [each]: event.target.value })}
        />
      </Field>
    );
  });
}
