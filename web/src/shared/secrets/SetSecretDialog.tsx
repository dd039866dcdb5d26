// Stores a secret, or a new version of one; the value is never shown again.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { errorAt, errorBeyond } from "@/shared/api/errors";
import { SENDS_SECRET } from "@/shared/api/session";
import { Button } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { ActionDialog, Dialog } from "@/shared/ui/Dialog";
import { Field } from "@/shared/ui/Field";
import { type Holder, keyOf, putSecret, referenceTo, setSecretCommand, valueIn } from "./holder";

const NAME_AT = "path/secret";
const VALUE_AT = "/value";

interface SetSecretDialogProps {
  holder: Holder;
  /** Name of the secret that gets a new version; null for a new secret. */
  secret: string | null;
  onClose: () => void;
}

export function SetSecretDialog({ holder, secret, onClose }: SetSecretDialogProps) {
  const [typed, setTyped] = useState("");
  const [text, setText] = useState("");
  const [isShown, setIsShown] = useState(false);
  const name = secret ?? typed.trim();
  const client = useQueryClient();
  const save = useMutation({
    meta: SENDS_SECRET,
    mutationFn: () => putSecret(holder, name, valueIn(text)),
    onSuccess: ({ warning }) => {
      void client.invalidateQueries({ queryKey: keyOf(holder) });
      setText("");
      if (secret !== null && warning === null) onClose();
    },
  });
  if (save.data) {
    return (
      <Dialog
        title={`${name} is stored`}
        onClose={onClose}
        footer={<Button onClick={onClose}>Close</Button>}
      >
        {save.data.warning && <p role="alert">Note that {save.data.warning}.</p>}
        <p>
          A job gets the value as a variable of its choice, by this line under [env] of the spec:
        </p>
        <CommandLine command={referenceTo(holder, name)} isText label="Line of a spec" />
      </Dialog>
    );
  }
  const nameError = errorAt(save.error, NAME_AT);
  const valueError = errorAt(save.error, VALUE_AT);
  return (
    <ActionDialog
      title={secret === null ? "New secret" : `New value of ${secret}`}
      label="Store"
      action={{ ...save, error: errorBeyond(save.error, [NAME_AT, VALUE_AT]) }}
      disabled={name === "" || text === ""}
      command={setSecretCommand(holder, name)}
      onClose={onClose}
    >
      {secret === null && (
        <Field
          htmlFor="secret-name"
          label="Name"
          help="Specs refer to it, and everyone who sees a job may read it."
          error={nameError}
        >
          <input
            id="secret-name"
            className="input"
            autoComplete="off"
            autoCapitalize="none"
            spellCheck={false}
            maxLength={80}
            value={typed}
            aria-invalid={nameError !== undefined}
            aria-describedby="secret-name-said"
            onChange={(event) => setTyped(event.target.value)}
          />
        </Field>
      )}
      <Field
        htmlFor="secret-value"
        label="Value"
        help="Stored encrypted, and never shown again. A line break at the end is dropped."
        error={valueError}
      >
        <textarea
          id="secret-value"
          className={`input mono secret-value${isShown ? "" : " secret-hidden"}`}
          rows={3}
          autoComplete="off"
          autoCapitalize="none"
          spellCheck={false}
          value={text}
          aria-invalid={valueError !== undefined}
          aria-describedby="secret-value-said"
          onChange={(event) => setText(event.target.value)}
        />
        <Button small onClick={() => setIsShown(!isShown)}>
          {isShown ? "Hide the value" : "Show the value"}
        </Button>
      </Field>
      <p className="small muted">
        {holder === null
          ? "Only your own jobs may use it."
          : `Each member of ${holder} may use it in jobs, and code of a job may read it.`}
        {secret !== null && " Jobs that start from now on get the new value."}
      </p>
    </ActionDialog>
  );
}
