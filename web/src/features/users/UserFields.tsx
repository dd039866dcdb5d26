// The fields of a user: the role with what it allows, the e-mail address and the Unix account.
import type { ClusterRole } from "@/shared/api/types";
import { Field } from "@/shared/ui/Field";
import { ROLES } from "./state";

interface RoleFieldProps {
  value: ClusterRole;
  error?: string | undefined;
  /** The own role: another admin changes it. */
  isFixed?: boolean;
  onChange: (role: ClusterRole) => void;
}

export function RoleField({ value, error, isFixed = false, onChange }: RoleFieldProps) {
  const help = isFixed ? "Another admin can change your own role." : ROLES[value];
  return (
    <Field htmlFor="user-role" label="Role" help={help} error={error}>
      <select
        id="user-role"
        className="select"
        disabled={isFixed}
        value={value}
        aria-describedby="user-role-said"
        onChange={(event) => onChange(event.target.value as ClusterRole)}
      >
        {Object.keys(ROLES).map((role) => (
          <option key={role}>{role}</option>
        ))}
      </select>
    </Field>
  );
}

interface EmailFieldProps {
  value: string;
  error?: string | undefined;
  onChange: (email: string) => void;
}

export function EmailField({ value, error, onChange }: EmailFieldProps) {
  return (
    <Field htmlFor="user-email" label="E-mail" help="For display only; may be empty." error={error}>
      <input
        id="user-email"
        className="input"
        type="email"
        autoComplete="off"
        maxLength={254}
        value={value}
        aria-invalid={error !== undefined}
        aria-describedby="user-email-said"
        onChange={(event) => onChange(event.target.value)}
      />
    </Field>
  );
}

interface AccountFieldProps {
  value: string;
  error?: string | undefined;
  /** The own account: another admin changes it. */
  isFixed: boolean;
  onChange: (account: string) => void;
}

export function AccountField({ value, error, isFixed, onChange }: AccountFieldProps) {
  const help = isFixed
    ? "Another admin can change your own account."
    : "Nodes with TRAINYARD_RUN_AS=owner run the user's jobs under it; may be empty.";
  return (
    <Field htmlFor="user-account" label="Unix account" help={help} error={error}>
      <input
        id="user-account"
        className="input"
        autoComplete="off"
        spellCheck={false}
        maxLength={32}
        disabled={isFixed}
        value={value}
        aria-invalid={error !== undefined}
        aria-describedby="user-account-said"
        onChange={(event) => onChange(event.target.value)}
      />
    </Field>
  );
}
