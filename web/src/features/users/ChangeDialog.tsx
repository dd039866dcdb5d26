// Changes role and e-mail address of a user.
import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { api, ask } from "@/shared/api/client";
import { errorAt, errorBeyond } from "@/shared/api/errors";
import type { User } from "@/shared/api/types";
import { useSession } from "@/shared/api/useMay";
import { ActionDialog } from "@/shared/ui/Dialog";
import { EmailField, RoleField } from "./RoleField";
import { changeCommand, changesOf } from "./state";
import { useUsersChanged } from "./useUsersChanged";

export function ChangeDialog({ user, onClose }: { user: User; onClose: () => void }) {
  const [role, setRole] = useState(user.role);
  const [email, setEmail] = useState(user.email ?? "");
  const changes = changesOf(user, role, email);
  const changed = useUsersChanged();
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
      action={{ ...save, error: errorBeyond(save.error, ["/email", "/role"]) }}
      disabled={Object.keys(changes).length === 0}
      command={changeCommand(user, changes)}
      onClose={onClose}
    >
      <RoleField
        value={role}
        isFixed={isSelf}
        error={errorAt(save.error, "/role")}
        onChange={setRole}
      />
      {changes.role && (
        <p className="small muted">
          The new role is effective at once, also for tokens and sessions. Open links of {user.name}
          , and links that {user.name} made for others, end.
        </p>
      )}
      <EmailField value={email} error={errorAt(save.error, "/email")} onChange={setEmail} />
    </ActionDialog>
  );
}
