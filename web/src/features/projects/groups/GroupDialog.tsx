// Gives a group of the issuer a role in a project, or takes it away.
import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { api, ask } from "@/shared/api/client";
import { errorAt, errorBeyond } from "@/shared/api/errors";
import { projectRoleValues } from "@/shared/api/schema";
import type { IssuerGroup, ProjectRole } from "@/shared/api/types";
import { ActionDialog } from "@/shared/ui/Dialog";
import { Field } from "@/shared/ui/Field";
import { RoleField } from "../members/RoleField";
import { groupCommand } from "../members/roles";
import { useMembersChanged } from "../members/useMembersChanged";

const ROLES = [null, ...projectRoleValues];

interface GroupDialogProps {
  project: string;
  /** The group to change; null for a new one. */
  group: IssuerGroup | null;
  onClose: () => void;
}

export function GroupDialog({ project, group, onClose }: GroupDialogProps) {
  const [typed, setTyped] = useState("");
  const [role, setRole] = useState<ProjectRole | null>(group?.role ?? "member");
  // As typed: names are compared exactly, spaces at the ends included.
  const name = group?.group ?? typed;
  const changed = useMembersChanged();
  const save = useMutation({
    mutationFn: () =>
      ask(
        api.PUT("/api/v1/projects/{name}/groups", {
          params: { path: { name: project } },
          body: { group: name, role },
        }),
      ),
    onSuccess: () => {
      changed();
      onClose();
    },
  });
  const nameError = errorAt(save.error, "/group");
  return (
    <ActionDialog
      title={group ? `Role of ${name}` : "Add a group"}
      label={group ? "Save" : "Add"}
      action={{ ...save, error: errorBeyond(save.error, ["/group"]) }}
      disabled={name === "" || (group === null ? role === null : role === group.role)}
      command={groupCommand(project, name, role)}
      onClose={onClose}
    >
      {group === null && (
        <Field
          htmlFor="group-name"
          label="Group"
          help="Exactly as the issuer names it, such as /research/vision."
          error={nameError}
        >
          <input
            id="group-name"
            className="input"
            autoComplete="off"
            autoCapitalize="none"
            spellCheck={false}
            maxLength={200}
            value={typed}
            aria-invalid={nameError !== undefined}
            aria-describedby="group-name-said"
            onChange={(event) => setTyped(event.target.value)}
          />
        </Field>
      )}
      <RoleField
        roles={group === null ? projectRoleValues : ROLES}
        value={role}
        none="The group gives no role here."
        onChange={setRole}
      />
      {role !== null && (
        <p className="small muted">
          Each person of the group has at least this role, also one who logs in for the first time.
        </p>
      )}
    </ActionDialog>
  );
}
