// Makes a new link for a user: another invitation, or the reset of a forgotten password.
import { useMutation } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import type { User } from "@/shared/api/types";
import { command } from "@/shared/format/shell";
import { ActionDialog } from "@/shared/ui/Dialog";
import { LinkShown } from "./LinkShown";
import { useUsersChanged } from "./useUsersChanged";

export function LinkDialog({ user, onClose }: { user: User; onClose: () => void }) {
  const { id, name, has_password } = user;
  const changed = useUsersChanged();
  const make = useMutation({
    mutationFn: () =>
      ask(api.POST("/api/v1/users/{user_id}/invitation", { params: { path: { user_id: id } } })),
    onSuccess: changed,
  });
  if (make.data) return <LinkShown made={make.data} onClose={onClose} />;
  return (
    <ActionDialog
      title={has_password ? `Reset the password of ${name}?` : `Invite ${name} again?`}
      label="Make a link"
      action={make}
      command={command("users", "reset", name)}
      onClose={onClose}
    >
      {has_password ? (
        <p>
          {name} sets a new password with a link, valid for seven days. Until then the present
          password works. The new password ends the sessions, API tokens and open commands of {name}
          .
        </p>
      ) : (
        <p>{name} sets a password with a new link, valid for seven days. Earlier links end now.</p>
      )}
    </ActionDialog>
  );
}
