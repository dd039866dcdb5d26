// The name of another user: suggestions for those who may list users, otherwise plain text.
import { useQuery } from "@tanstack/react-query";
import { usersQuery } from "@/shared/api/queries";
import { BUILT_IN, useMay } from "@/shared/api/useMay";
import { Field } from "@/shared/ui/Field";

interface UserFieldProps {
  label: string;
  help: string;
  value: string;
  error?: string | undefined;
  /** Names to suggest; the known users are added. */
  names?: readonly string[];
  /** Names that are not suggested. */
  without: readonly string[];
  onChange: (name: string) => void;
}

export function UserField(props: UserFieldProps) {
  const { label, help, value, error, names = [], without, onChange } = props;
  const users = useQuery({ ...usersQuery, enabled: useMay("users:admin") });
  const active = users.data?.filter(
    ({ state, kind, name }) => state === "active" && kind === "person" && name !== BUILT_IN,
  );
  const known = [...new Set([...names, ...(active ?? []).map(({ name }) => name)])];
  return (
    <Field htmlFor="other-user" label={label} help={help} error={error}>
      <input
        id="other-user"
        className="input"
        list="other-users"
        autoComplete="off"
        autoCapitalize="none"
        spellCheck={false}
        maxLength={64}
        value={value}
        aria-invalid={error !== undefined}
        aria-describedby="other-user-said"
        onChange={(event) => onChange(event.target.value)}
      />
      <datalist id="other-users">
        {known
          .filter((name) => !without.includes(name))
          .sort()
          .map((name) => (
            <option key={name} value={name} />
          ))}
      </datalist>
    </Field>
  );
}
