// Creates a user, and shows the link with which the user sets a password.
import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { api, ask } from "@/shared/api/client";
import { errorAt, errorBeyond } from "@/shared/api/errors";
import { ActionDialog } from "@/shared/ui/Dialog";
import { Field } from "@/shared/ui/Field";
import { LinkShown } from "./LinkShown";
import { inviteCommand, type NewUser } from "./state";
import { EmailField, RoleField } from "./UserFields";
import { useUsersChanged } from "./useUsersChanged";

export function InviteDialog({ onClose }: { onClose: () => void }) {
  const [user, setUser] = useState<NewUser>({ name: "", email: "", role: "user" });
  const changed = useUsersChanged();
  const invite = useMutation({
    mutationFn: () => {
      const body = { name: user.name.trim(), email: user.email.trim() || null, role: user.role };
      return ask(api.POST("/api/v1/users", { body }));
    },
    onSuccess: changed,
  });
  if (invite.data) return <LinkShown made={invite.data} onClose={onClose} />;
  const nameError = errorAt(invite.error, "/name");
  return (
    <ActionDialog
      title="Invite a user"
      label="Invite"
      action={{ ...invite, error: errorBeyond(invite.error, ["/name", "/email", "/role"]) }}
      disabled={user.name.trim() === ""}
      command={inviteCommand(user)}
      onClose={onClose}
    >
      <Field
        htmlFor="user-name"
        label="Name"
        help="Lower case, such as ada. It never changes, and no later user can have it."
        error={nameError}
      >
        <input
          id="user-name"
          className="input"
          autoComplete="off"
          autoCapitalize="none"
          spellCheck={false}
          maxLength={64}
          value={user.name}
          aria-invalid={nameError !== undefined}
          aria-describedby="user-name-said"
          onChange={(event) => setUser({ ...user, name: event.target.value })}
        />
      </Field>
      <EmailField
        value={user.email}
        error={errorAt(invite.error, "/email")}
        onChange={(email) => setUser({ ...user, email })}
      />
      <RoleField
        value={user.role}
        error={errorAt(invite.error, "/role")}
        onChange={(role) => setUser({ ...user, role })}
      />
    </ActionDialog>
  );
}
