// Changes the role that every person has in a project.
import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { api, ask } from "@/shared/api/client";
import { projectRoleValues } from "@/shared/api/schema";
import type { Project } from "@/shared/api/types";
import { ActionDialog } from "@/shared/ui/Dialog";
import { RoleField } from "./RoleField";
import { everyoneCommand } from "./roles";
import { useMembersChanged } from "./useMembersChanged";

const ROLES = [null, ...projectRoleValues];

export function EveryoneDialog({ project, onClose }: { project: Project; onClose: () => void }) {
  const { name, everyone } = project;
  const [role, setRole] = useState(everyone);
  const changed = useMembersChanged();
  const save = useMutation({
    mutationFn: () =>
      ask(
        api.PUT("/api/v1/projects/{name}/everyone", {
          params: { path: { name } },
          body: { role },
        }),
      ),
    onSuccess: () => {
      changed();
      onClose();
    },
  });
  return (
    <ActionDialog
      title={`Role of everyone in ${name}`}
      label="Save"
      action={save}
      disabled={role === everyone}
      command={everyoneCommand(name, role)}
      onClose={onClose}
    >
      <p>
        Every active person of the server has this role, later users too. A greater role by
        membership stays. Service accounts do not get it.
      </p>
      <RoleField roles={ROLES} value={role} onChange={setRole} />
    </ActionDialog>
  );
}
