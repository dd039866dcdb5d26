// A field for a password, which a button shows and hides.
import { type RefObject, useState } from "react";
import { Button } from "@/shared/ui/Button";
import { Field } from "@/shared/ui/Field";
import "./accounts.css";

/** Least number of characters of a new password. */
export const MIN_PASSWORD = 12;

interface PasswordFieldProps {
  id: string;
  label: string;
  /** What a password manager fills in or stores. */
  autoComplete: "current-password" | "new-password";
  value: string;
  error?: string | undefined;
  onChange: (password: string) => void;
  input?: RefObject<HTMLInputElement | null>;
}

export function PasswordField(props: PasswordFieldProps) {
  const { id, label, autoComplete, value, error, onChange, input } = props;
  const [isShown, setIsShown] = useState(false);
  const verb = isShown ? "Hide" : "Show";
  const isNew = autoComplete === "new-password";
  return (
    <Field
      htmlFor={id}
      label={label}
      error={error}
      help={isNew && `${MIN_PASSWORD} characters or more, for example four words.`}
    >
      <input
        ref={input}
        id={id}
        className="input"
        type={isShown ? "text" : "password"}
        autoComplete={autoComplete}
        autoCapitalize="none"
        spellCheck={false}
        required
        minLength={isNew ? MIN_PASSWORD : undefined}
        maxLength={1000}
        value={value}
        aria-invalid={error !== undefined}
        aria-describedby={`${id}-said`}
        onChange={(event) => onChange(event.target.value)}
      />
      <Button
        className="password-show"
        aria-label={`${verb} the ${label.toLowerCase()}`}
        onClick={() => setIsShown(!isShown)}
      >
        {verb}
      </Button>
    </Field>
  );
}

/** The user name of a form with a new password, from which password managers take it. */
export function UserNameForManagers({ name }: { name: string }) {
  return (
    <input
      className="visually-hidden"
      type="text"
      name="username"
      autoComplete="username"
      aria-label="User name"
      tabIndex={-1}
      readOnly
      value={name}
    />
  );
}
