// The fields that restrict the rows of the audit log.
import { auditOutcomeValues } from "@/shared/api/schema";
import { useDraft } from "@/shared/api/useSettled";
import { Button } from "@/shared/ui/Button";
import type { AuditFilter } from "./filter";

const TYPING_MILLISECONDS = 300;
const EMPTY: AuditFilter = {
  user: "",
  project: "",
  object: "",
  operation: "",
  outcome: null,
  from: "",
  to: "",
};

type Text = "user" | "project" | "object" | "operation";

/** Each text field with its label and an example. */
const TEXTS: readonly (readonly [Text, string, string])[] = [
  ["user", "User", "ada"],
  ["project", "Project", "vision"],
  ["object", "Object", "projects/vision"],
  ["operation", "Operation", "members_put"],
];

interface AuditFilterBarProps {
  filter: AuditFilter;
  onChange: (change: Partial<AuditFilter>) => void;
}

export function AuditFilterBar({ filter, onChange }: AuditFilterBarProps) {
  const isEmpty = Object.values(filter).every((value) => !value);
  return (
    <search className="toolbar audit-filter" aria-label="Filter the audit log">
      <fieldset className="segments">
        <legend className="visually-hidden">Outcome</legend>
        {[null, ...auditOutcomeValues].map((outcome) => (
          <button
            key={outcome}
            type="button"
            className="segment"
            aria-pressed={filter.outcome === outcome}
            onClick={() => onChange({ outcome })}
          >
            {outcome ?? "all"}
          </button>
        ))}
      </fieldset>
      {TEXTS.map(([name, label, example]) => (
        <TextField
          key={name}
          label={label}
          example={example}
          value={filter[name]}
          onChange={(value) => onChange({ [name]: value })}
        />
      ))}
      {(["from", "to"] as const).map((name) => (
        <label key={name} className="audit-day small muted">
          {name}
          <input
            className="input"
            type="date"
            value={filter[name]}
            onChange={(event) => onChange({ [name]: event.target.value })}
          />
        </label>
      ))}
      {!isEmpty && (
        <Button small onClick={() => onChange(EMPTY)}>
          Clear
        </Button>
      )}
    </search>
  );
}

interface TextFieldProps {
  label: string;
  example: string;
  value: string;
  onChange: (value: string) => void;
}

function TextField({ label, example, value, onChange }: TextFieldProps) {
  const [typed, setTyped] = useDraft(value, (text) => onChange(text.trim()), TYPING_MILLISECONDS);
  return (
    <input
      className="input audit-text"
      type="search"
      aria-label={label}
      placeholder={`${label}: ${example}`}
      autoComplete="off"
      autoCapitalize="none"
      spellCheck={false}
      maxLength={300}
      value={typed}
      onChange={(event) => setTyped(event.target.value)}
    />
  );
}
