// Changes role, e-mail address and Unix account of a user.
import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { api, ask } from "@/shared/api/client";
import { errorAt, errorBeyond } from "@/shared/api/errors";
import type { User } from "@/shared/api/types";
import { useSession } from "@/shared/api/useMay";
import { ActionDialog } from "@/shared/ui/Dialog";
import { changeCommand, changesOf } from "./state";
import { AccountField, EmailField, RoleField } from "./UserFields";
import { useUsersChanged } from "./useUsersChanged";

export function ChangeDialog({ user, onClose }: { user: User; onClose: () => void }) {
  const [role, setRole] = useState(user.role);
  const [email, setEmail] = useState(user.email ?? "");
  const [account, setAccount] = useState(user.unix_account ?? "");
  const changes = changesOf(user, { role, email, account });
  const changed = useUsersChanged();
  // A service account has no role in the cluster, and no address.
  const isPerson = user.kind === "person";
  const isSelf = useSession()?.user?.id === user.id;
  const save = useMutation({
    mutationFn: () =>
      ask(
        api.PATCH("/api/v1/users/{user_id}", {
          params: { path: { user_id: user.id } },
          body: changes,
        }),
      ),
    onSuccess: () => {
      changed();
      onClose();
    },
  });
  return (
    <ActionDialog
      title={`User ${user.name}`}
      label="Save"
      action={{ ...save, error: errorBeyond(save.error, ["/email", "/role", "/unix_account"]) }}
      disabled={Object.keys(changes).length === 0}
      command={changeCommand(user, changes)}
      onClose={onClose}
    >
      {isPerson && (
        <RoleField
          value={role}
          isFixed={isSelf}
          error={errorAt(save.error, "/role")}
          onChange={setRole}
        />
      )}
      {changes.role && (
        <p className="small muted">
          The new role is effective at once, also for tokens and sessions. Open links of {user.name}
          , and links that {user.name} made for others, end.
        </p>
      )}
      {isPerson && (
        <EmailField value={email} error={errorAt(save.error, "/email")} onChange={setEmail} />
      )}
      <AccountField
        value={account}
        isFixed={isSelf}
        error={errorAt(save.error, "/unix_account")}
        onChange={setAccount}
      />
    </ActionDialog>
  );
}
