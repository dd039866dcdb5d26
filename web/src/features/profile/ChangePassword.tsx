// Changes the caller's password, which ends the other sessions.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { PasswordField, UserNameForManagers } from "@/shared/accounts/PasswordField";
import { api, ask } from "@/shared/api/client";
import { errorAt, isUnauthenticated } from "@/shared/api/errors";
import { keys } from "@/shared/api/queries";
import { SENDS_SECRET } from "@/shared/api/session";
import { Button } from "@/shared/ui/Button";
import { Dialog } from "@/shared/ui/Dialog";
import { InlineError } from "@/shared/ui/Notice";

export function ChangePassword({ name }: { name: string }) {
  const [isOpen, setIsOpen] = useState(false);
  const [isChanged, setIsChanged] = useState(false);
  const close = (changed: boolean) => {
    setIsOpen(false);
    setIsChanged(changed);
  };
  return (
    <>
      <Button small onClick={() => setIsOpen(true)}>
        Change the password
      </Button>
      <span className="profile-changed muted" role="status">
        {isChanged && "Changed. All other sessions have ended."}
      </span>
      {isOpen && <PasswordDialog name={name} onClose={close} />}
    </>
  );
}

interface PasswordDialogProps {
  name: string;
  onClose: (changed: boolean) => void;
}

function PasswordDialog({ name, onClose }: PasswordDialogProps) {
  const [current, setCurrent] = useState("");
  const [wanted, setWanted] = useState("");
  const client = useQueryClient();
  const change = useMutation({
    meta: SENDS_SECRET,
    mutationFn: () => ask(api.PUT("/api/v1/auth/password", { body: { current, new: wanted } })),
    onSuccess: () => {
      void client.invalidateQueries({ queryKey: keys.sessions });
      onClose(true);
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    change.mutate();
  };
  const isWrong = isUnauthenticated(change.error);
  const newError = errorAt(change.error, "/new");
  return (
    <Dialog
      title="Change the password"
      onClose={() => onClose(false)}
      footer={
        <>
          <Button onClick={() => onClose(false)}>Back</Button>
          <Button type="submit" form="change-password" look="primary" busy={change.isPending}>
            Change the password
          </Button>
        </>
      }
    >
      <form id="change-password" className="stack" onSubmit={submit}>
        <p>All other browsers are logged out. Tokens stay valid.</p>
        <UserNameForManagers name={name} />
        <PasswordField
          id="current-password"
          label="Present password"
          autoComplete="current-password"
          value={current}
          error={isWrong ? "This is not the present password." : undefined}
          onChange={setCurrent}
        />
        <PasswordField
          id="new-password"
          label="New password"
          autoComplete="new-password"
          value={wanted}
          error={newError}
          onChange={setWanted}
        />
      </form>
      {change.isError && !isWrong && !newError && <InlineError error={change.error} />}
    </Dialog>
  );
}
