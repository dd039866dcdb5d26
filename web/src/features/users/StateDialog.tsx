// Disables a user, with what ends, or enables the user again.
import { useMutation } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import type { User } from "@/shared/api/types";
import { command } from "@/shared/format/shell";
import { ActionDialog } from "@/shared/ui/Dialog";
import { useUsersChanged } from "./useUsersChanged";

export function StateDialog({ user, onClose }: { user: User; onClose: () => void }) {
  const { id, name, kind, has_password } = user;
  const isActive = user.state === "active";
  const verb = isActive ? "Disable" : "Enable";
  const changed = useUsersChanged();
  const change = useMutation({
    mutationFn: () =>
      ask(
        api.PATCH("/api/v1/users/{user_id}", {
          params: { path: { user_id: id } },
          body: { state: isActive ? "disabled" : "active" },
        }),
      ),
    onSuccess: () => {
      changed();
      onClose();
    },
  });
  return (
    <ActionDialog
      title={`${verb} ${name}?`}
      label={verb}
      look={isActive ? "danger" : "primary"}
      action={change}
      command={command("users", verb.toLowerCase(), name)}
      onClose={onClose}
    >
      {kind === "service" ? (
        <p>
          {isActive
            ? `All tokens of ${name} end for good, and its commands end. Its jobs continue.`
            : `A maintainer can make new tokens of ${name}. Former tokens stay ended.`}
        </p>
      ) : isActive ? (
        <>
          <p>{name} can no longer log in, and these end now:</p>
          <ul className="user-ends">
            <li>all browser sessions</li>
            <li>all API tokens, for good, with the programs that use them</li>
            <li>open links, and links that {name} made for others</li>
            <li>commands in jobs, open streams and uploads</li>
          </ul>
          <p>Jobs of {name} continue.</p>
        </>
      ) : (
        <p>
          {name} can log in again
          {has_password ? " with the former password" : " after a new link has set a password"}.
          Former tokens and sessions stay ended.
        </p>
      )}
    </ActionDialog>
  );
}
