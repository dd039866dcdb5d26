// Confirms before a membership ends.
import { useMutation } from "@tanstack/react-query";
import { isAdmin } from "@/shared/api/barriers";
import { api, ask } from "@/shared/api/client";
import type { Project } from "@/shared/api/types";
import { useSession } from "@/shared/api/useMay";
import { ActionDialog } from "@/shared/ui/Dialog";
import { lossOf, ownLoss, removeCommand } from "./roles";
import { useMembersChanged } from "./useMembersChanged";

interface RemoveDialogProps {
  project: Project;
  user: string;
  onClose: () => void;
}

export function RemoveDialog({ project, user, onClose }: RemoveDialogProps) {
  const { name, everyone } = project;
  const session = useSession();
  const isSelf = session?.user?.name === user;
  const changed = useMembersChanged();
  const remove = useMutation({
    mutationFn: () =>
      ask(
        api.DELETE("/api/v1/projects/{name}/members/{user}", { params: { path: { name, user } } }),
      ),
    onSuccess: () => {
      changed();
      onClose();
    },
  });
  return (
    <ActionDialog
      title={isSelf ? `Leave ${name}?` : `Remove ${user} from ${name}?`}
      label={isSelf ? "Leave" : "Remove"}
      look="danger"
      action={remove}
      command={removeCommand(name, user)}
      onClose={onClose}
    >
      <p>
        {isSelf ? ownLoss(everyone, isAdmin(session)) : lossOf(user, everyone)} Commands and uploads
        that the role allowed end.
      </p>
      <p>{isSelf ? "Your jobs" : `Jobs of ${user}`} continue and stay in the project.</p>
    </ActionDialog>
  );
}
