// Adds a member, or changes role and limits of one.
import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { UserField } from "@/shared/accounts/UserField";
import { api, ask } from "@/shared/api/client";
import { errorBeyond } from "@/shared/api/errors";
import { projectRoleValues } from "@/shared/api/schema";
import type { Member, Project, ProjectRole } from "@/shared/api/types";
import { useSession } from "@/shared/api/useMay";
import { ActionDialog } from "@/shared/ui/Dialog";
import { LimitFields } from "./LimitFields";
import { changedLimits, limitOptions, limitsOf, typedOf } from "./limits";
import { RoleField } from "./RoleField";
import { ACCOUNT_ROLES, setCommand } from "./roles";
import { useMembersChanged } from "./useMembersChanged";

const NO_LIMITS = { max_slots: null, max_running: null };

interface MemberDialogProps {
  project: Project;
  /** The member to change; null for a new one. */
  member: Member | null;
  members: readonly Member[];
  onClose: () => void;
}

export function MemberDialog({ project, member, members, onClose }: MemberDialogProps) {
  const [typed, setTyped] = useState("");
  const [role, setRole] = useState<ProjectRole>(member?.role ?? "member");
  const before = member ?? NO_LIMITS;
  const [limits, setLimits] = useState(typedOf(before));
  const newLimits = changedLimits(limits, before);
  const user = member?.user ?? typed.trim();
  const isSelf = useSession()?.user?.name === user;
  const changed = useMembersChanged();
  const save = useMutation({
    mutationFn: () =>
      ask(
        api.PUT("/api/v1/projects/{name}/members/{user}", {
          params: { path: { name: project.name, user } },
          body: { role, ...newLimits },
        }),
      ),
    onSuccess: () => {
      changed();
      onClose();
    },
  });
  return (
    <ActionDialog
      title={member ? `Role and limits of ${user}` : "Add a member"}
      label={member ? "Save" : "Add"}
      action={{ ...save, error: errorBeyond(save.error, ["/max_slots", "/max_running"]) }}
      disabled={user === "" || (role === member?.role && Object.keys(newLimits).length === 0)}
      command={setCommand(project.name, user, role, ...limitOptions(limits, before))}
      onClose={onClose}
    >
      {member === null && (
        <UserField
          label="User"
          help="Name of a user of this server. An admin invites new users."
          value={typed}
          without={members.map((each) => each.user)}
          onChange={setTyped}
        />
      )}
      <RoleField
        roles={member?.kind === "service" ? ACCOUNT_ROLES : projectRoleValues}
        value={role}
        onChange={setRole}
      />
      <LimitFields
        typed={limits}
        otherwise={limitsOf(project)}
        error={save.error}
        onChange={setLimits}
      />
      {member && role !== member.role && (
        <p className="small muted">
          The new role is effective at once, also for sessions and tokens.
          {isSelf && " Another maintainer or an admin can give you the former role again."}
        </p>
      )}
    </ActionDialog>
  );
}
