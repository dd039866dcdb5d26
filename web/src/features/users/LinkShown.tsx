// The link of an invitation, which is shown once.
import type { Invitation } from "@/shared/api/types";
import { moment } from "@/shared/format/time";
import { SecretDialog } from "@/shared/tokens/SecretDialog";

export function LinkShown({ made, onClose }: { made: Invitation; onClose: () => void }) {
  const { user, link, expires_at } = made;
  return (
    <SecretDialog
      title={`Link for ${user.name}`}
      command={link}
      label={`Link with which ${user.name} sets a password`}
      isText
      onClose={onClose}
    >
      Send this link to {user.name}, who sets a password with it. It works once, until{" "}
      {moment(expires_at)}, and is shown only now: the server stores only its hash.
    </SecretDialog>
  );
}
