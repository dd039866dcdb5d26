// The secrets of a project, or the caller's own, with the dialogs that store and delete them.
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import type { Secret } from "@/shared/api/types";
import { plural } from "@/shared/format/numbers";
import { Button } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Absent } from "@/shared/ui/Notice";
import { RelativeTime } from "@/shared/ui/RelativeTime";
import { type Column, Table } from "@/shared/ui/table/Table";
import { DeleteSecretDialog } from "./DeleteSecretDialog";
import { type Holder, listCommand, secretsQuery } from "./holder";
import { SetSecretDialog } from "./SetSecretDialog";
import "./secrets.css";

const COLUMNS: readonly Column[] = [
  { name: "name", label: "Name" },
  { name: "version", label: "Version", className: "secret-version" },
  { name: "changed", label: "Changed", number: true, className: "secret-changed" },
  {
    name: "action",
    label: <span className="visually-hidden">Actions</span>,
    className: "secret-actions",
  },
];

type Opened = { dialog: "set"; name: string | null } | { dialog: "delete"; secret: Secret };

interface SecretsProps {
  holder: Holder;
  /** Name of the heading that names the part. */
  headingId: string;
  /** Why the caller stores none; null if nothing is against it. */
  barrier: string | null;
  /** What the secrets are for, while there are none. */
  purpose: string;
}

export function Secrets({ holder, headingId, barrier, purpose }: SecretsProps) {
  const secrets = useQuery(secretsQuery(holder));
  const [opened, setOpened] = useState<Opened | null>(null);
  return (
    <section className="secrets-part" aria-labelledby={headingId}>
      <div className="secrets-head row">
        <h2 id={headingId}>Secrets</h2>
        <Button barrier={barrier} onClick={() => setOpened({ dialog: "set", name: null })}>
          New secret
        </Button>
      </div>
      {!secrets.data ? (
        <Absent query={secrets} lines={2} />
      ) : secrets.data.length === 0 ? (
        <p className="panel secrets-none muted">None. {purpose}</p>
      ) : (
        <Table label="Secrets" columns={COLUMNS} className="secrets cards">
          {secrets.data.map((secret) => (
            <SecretRow key={secret.name} secret={secret} mayWrite={!barrier} onOpen={setOpened} />
          ))}
        </Table>
      )}
      <CommandLine command={listCommand(holder)} label="Lists the same secrets" />
      {opened?.dialog === "set" && (
        <SetSecretDialog holder={holder} secret={opened.name} onClose={() => setOpened(null)} />
      )}
      {opened?.dialog === "delete" && (
        <DeleteSecretDialog
          holder={holder}
          secret={opened.secret}
          onClose={() => setOpened(null)}
        />
      )}
    </section>
  );
}

interface SecretRowProps {
  secret: Secret;
  mayWrite: boolean;
  onOpen: (opened: Opened) => void;
}

function SecretRow({ secret, mayWrite, onOpen }: SecretRowProps) {
  const { name, version, versions, changed_at, changed_by } = secret;
  return (
    <tr>
      <td className="secret-name mono">{name}</td>
      <td className="secret-version">
        {version}
        {versions.length > 1 && (
          <span className="small muted"> of {plural(versions.length, "kept version")}</span>
        )}
      </td>
      <td className="secret-changed number">
        <RelativeTime at={changed_at} isSentence /> by {changed_by}
      </td>
      <td className="secret-actions">
        {mayWrite && (
          <>
            <Button
              small
              aria-label={`New value of ${name}`}
              onClick={() => onOpen({ dialog: "set", name })}
            >
              New value
            </Button>
            <Button
              small
              aria-label={`Delete ${name}`}
              onClick={() => onOpen({ dialog: "delete", secret })}
            >
              Delete
            </Button>
          </>
        )}
      </td>
    </tr>
  );
}
