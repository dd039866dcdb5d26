// Changes the limits that hold for each user of a project.
import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { api, ask } from "@/shared/api/client";
import { errorBeyond } from "@/shared/api/errors";
import type { Project } from "@/shared/api/types";
import { ActionDialog } from "@/shared/ui/Dialog";
import { LimitFields } from "./LimitFields";
import { changedLimits, limitsCommand, limitsOf, typedOf } from "./limits";
import { useMembersChanged } from "./useMembersChanged";

const NONE = { max_slots: null, max_running: null };

export function LimitsDialog({ project, onClose }: { project: Project; onClose: () => void }) {
  const { name } = project;
  const before = limitsOf(project);
  const [typed, setTyped] = useState(typedOf(before));
  const body = changedLimits(typed, before);
  const changed = useMembersChanged();
  const save = useMutation({
    mutationFn: () =>
      ask(api.PATCH("/api/v1/projects/{name}/limits", { params: { path: { name } }, body })),
    onSuccess: () => {
      changed();
      onClose();
    },
  });
  return (
    <ActionDialog
      title={`Limits of each user in ${name}`}
      label="Save"
      action={{ ...save, error: errorBeyond(save.error, ["/max_slots", "/max_running"]) }}
      disabled={Object.keys(body).length === 0}
      command={limitsCommand(name, typed, before)}
      onClose={onClose}
    >
      <p>
        What the jobs of one user hold in {name} at the same time. Further jobs of the user wait. A
        member may have own limits instead.
      </p>
      <LimitFields typed={typed} otherwise={NONE} error={save.error} onChange={setTyped} />
    </ActionDialog>
  );
}
