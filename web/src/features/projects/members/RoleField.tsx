// The choice of a role in a project, with what it allows.
import type { ProjectRole } from "@/shared/api/types";
import { Field } from "@/shared/ui/Field";
import { NONE, PROJECT_ROLES } from "./roles";

interface RoleFieldProps<Value extends ProjectRole | null> {
  /** Legal roles; null for no role. */
  roles: readonly Value[];
  value: Value;
  /** What no role means. */
  none?: string;
  onChange: (role: Value) => void;
}

export function RoleField<Value extends ProjectRole | null>(props: RoleFieldProps<Value>) {
  const { roles, value, none = "Only members see the project.", onChange } = props;
  const help = value === null ? none : PROJECT_ROLES[value];
  return (
    <Field htmlFor="project-role" label="Role" help={help}>
      <select
        id="project-role"
        className="select"
        value={value ?? NONE}
        aria-describedby="project-role-said"
        onChange={({ target }) => {
          const chosen = roles.find((role) => (role ?? NONE) === target.value);
          if (chosen !== undefined) onChange(chosen);
        }}
      >
        {roles.map((role) => (
          <option key={role ?? NONE}>{role ?? NONE}</option>
        ))}
      </select>
    </Field>
  );
}
