// Confirms before all versions of a secret are deleted.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import type { Secret } from "@/shared/api/types";
import { ActionDialog } from "@/shared/ui/Dialog";
import { deleteSecret, type Holder, keyOf, removeSecretCommand } from "./holder";

interface DeleteSecretDialogProps {
  holder: Holder;
  secret: Secret;
  onClose: () => void;
}

export function DeleteSecretDialog({ holder, secret, onClose }: DeleteSecretDialogProps) {
  const { name } = secret;
  const client = useQueryClient();
  const remove = useMutation({
    mutationFn: () => deleteSecret(holder, name),
    onSuccess: () => {
      void client.invalidateQueries({ queryKey: keyOf(holder) });
      onClose();
    },
  });
  return (
    <ActionDialog
      title={`Delete ${name}?`}
      label="Delete"
      look="danger"
      action={remove}
      command={removeSecretCommand(holder, name)}
      onClose={onClose}
    >
      <p>
        All versions are deleted. Running jobs keep the value; jobs that refer to {name} start no
        more, and end as failed when they would start.
      </p>
    </ActionDialog>
  );
}
