// The permissions of a new API token: all that such a token may have, or only the chosen ones.
import { PERMISSIONS } from "@/shared/api/permissions";
import type { Permission } from "@/shared/api/types";
import { Field } from "@/shared/ui/Field";

const NAMES = Object.keys(PERMISSIONS) as Permission[];
/** Permissions that a token has only as scopes. */
const ONLY_AS_SCOPES: readonly Permission[] = [
  "audit:read",
  "sources:write",
  "tokens:admin",
  "users:admin",
];

interface ScopesProps {
  /** Permissions of the token's user, as far as the caller has them: a token has no others. */
  held: readonly Permission[];
  whose: "you" | "the account";
  /** Null: every permission of an API token. */
  scopes: readonly Permission[] | null;
  error?: string | undefined;
  onChange: (scopes: Permission[] | null) => void;
}

export function Scopes({ held, whose, scopes, error, onChange }: ScopesProps) {
  const names = NAMES.filter((each) => held.includes(each));
  const toggle = (name: Permission) =>
    onChange(NAMES.filter((each) => scopes?.includes(each) !== (each === name)));
  return (
    <>
      <Field
        htmlFor="token-scopes"
        label="Permissions"
        help={scopes === null && allWords(held, whose)}
        error={error}
      >
        <select
          id="token-scopes"
          className="select"
          value={scopes === null ? "all" : "some"}
          aria-describedby="token-scopes-said"
          onChange={(event) => onChange(event.target.value === "all" ? null : [])}
        >
          <option value="all">All of an API token</option>
          <option value="some">Only these</option>
        </select>
      </Field>
      {scopes !== null && (
        <fieldset className="token-permissions">
          <legend className="visually-hidden">Scopes</legend>
          {names.map((name) => (
            <label key={name} className="token-permission">
              <input
                type="checkbox"
                checked={scopes.includes(name)}
                onChange={() => toggle(name)}
              />
              <span>
                <code>{name}</code> <span className="muted small">{PERMISSIONS[name]}</span>
              </span>
            </label>
          ))}
        </fieldset>
      )}
    </>
  );
}

function allWords(held: readonly Permission[], whose: ScopesProps["whose"]): string {
  const without = ONLY_AS_SCOPES.filter((each) => held.includes(each));
  return without.length === 0
    ? `Everything that ${whose} may do.`
    : `Everything that ${whose} may do, except ${without.join(", ")}.`;
}
