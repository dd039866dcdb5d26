// Confirms before a project is deleted.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import { keys } from "@/shared/api/queries";
import type { Project } from "@/shared/api/types";
import { command } from "@/shared/format/shell";
import { ActionDialog } from "@/shared/ui/Dialog";

interface DeleteProjectDialogProps {
  project: Project;
  onClose: () => void;
}

export function DeleteProjectDialog({ project, onClose }: DeleteProjectDialogProps) {
  const client = useQueryClient();
  const remove = useMutation({
    mutationFn: () =>
      ask(api.DELETE("/api/v1/projects/{name}", { params: { path: { name: project.name } } })),
    onSuccess: () => {
      void client.invalidateQueries({ queryKey: keys.projects });
      onClose();
    },
  });
  return (
    <ActionDialog
      title={`Delete ${project.name}?`}
      label="Delete"
      look="danger"
      action={remove}
      command={command("projects", "delete", project.name)}
      onClose={onClose}
    >
      <p>Only a project without jobs is deleted. Its slot-hours are deleted too.</p>
    </ActionDialog>
  );
}
