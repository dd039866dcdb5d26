// Creates a service account, or ends one.
import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { api, ask } from "@/shared/api/client";
import { errorAt, errorBeyond } from "@/shared/api/errors";
import { ActionDialog } from "@/shared/ui/Dialog";
import { Field } from "@/shared/ui/Field";
import { RoleField } from "../members/RoleField";
import {
  ACCOUNT_ROLES,
  type AccountRole,
  accountCommand,
  endAccountCommand,
} from "../members/roles";
import { useMembersChanged } from "../members/useMembersChanged";

interface NewAccountProps {
  project: string;
  onClose: () => void;
}

export function NewAccountDialog({ project, onClose }: NewAccountProps) {
  const [typed, setTyped] = useState("");
  const [role, setRole] = useState<AccountRole>("member");
  const name = typed.trim();
  const changed = useMembersChanged();
  const create = useMutation({
    mutationFn: () =>
      ask(
        api.POST("/api/v1/projects/{name}/service-accounts", {
          params: { path: { name: project } },
          body: { name, role },
        }),
      ),
    onSuccess: () => {
      changed();
      onClose();
    },
  });
  const nameError = errorAt(create.error, "/name");
  return (
    <ActionDialog
      title="New service account"
      label="Create"
      action={{ ...create, error: errorBeyond(create.error, ["/name"]) }}
      disabled={name === ""}
      command={accountCommand(project, name, role)}
      onClose={onClose}
    >
      <p>A user for programs, such as nightly jobs. It has a role in {project} alone.</p>
      <Field
        htmlFor="account-name"
        label="Name"
        help={`Lower case, such as nightly for nightly@${project}. No later account can have it.`}
        error={nameError}
      >
        <input
          id="account-name"
          className="input"
          autoComplete="off"
          autoCapitalize="none"
          spellCheck={false}
          maxLength={64}
          value={typed}
          aria-invalid={nameError !== undefined}
          aria-describedby="account-name-said"
          onChange={(event) => setTyped(event.target.value)}
        />
      </Field>
      <RoleField roles={ACCOUNT_ROLES} value={role} onChange={setRole} />
    </ActionDialog>
  );
}

interface EndAccountProps {
  project: string;
  account: string;
  onClose: () => void;
}

export function EndAccountDialog({ project, account, onClose }: EndAccountProps) {
  const changed = useMembersChanged();
  const end = useMutation({
    mutationFn: () =>
      ask(
        api.DELETE("/api/v1/projects/{name}/service-accounts/{user}", {
          params: { path: { name: project, user: account } },
        }),
      ),
    onSuccess: () => {
      changed();
      onClose();
    },
  });
  return (
    <ActionDialog
      title={`Delete ${account}?`}
      label="Delete"
      look="danger"
      action={end}
      command={endAccountCommand(project, account)}
      onClose={onClose}
    >
      <p>
        All tokens of {account} end for good, and programs with them are refused. Its jobs continue.
        The name is never given again.
      </p>
    </ActionDialog>
  );
}
