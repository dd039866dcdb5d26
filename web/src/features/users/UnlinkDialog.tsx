// Removes the identity of a user at the issuer, with what ends.
import { useMutation } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import type { User } from "@/shared/api/types";
import { command } from "@/shared/format/shell";
import { ActionDialog } from "@/shared/ui/Dialog";
import { useUsersChanged } from "./useUsersChanged";

export function UnlinkDialog({ user, onClose }: { user: User; onClose: () => void }) {
  const { id, name, issuer, has_password } = user;
  const changed = useUsersChanged();
  const unlink = useMutation({
    mutationFn: () =>
      ask(api.DELETE("/api/v1/users/{user_id}/identity", { params: { path: { user_id: id } } })),
    onSuccess: () => {
      changed();
      onClose();
    },
  });
  return (
    <ActionDialog
      title={`Unlink ${name}?`}
      label="Unlink"
      look="danger"
      action={unlink}
      command={command("users", "unlink", name)}
      onClose={onClose}
    >
      <p>
        {name} no longer logs in through {issuer}. Sessions and tokens of such logins end, and so do
        roles that groups of the issuer give.
      </p>
      {!has_password && <p>Without a password, {name} needs a new link to log in again.</p>}
    </ActionDialog>
  );
}
