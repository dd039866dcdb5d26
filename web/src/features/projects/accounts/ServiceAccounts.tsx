// The service accounts of a project, each with its tokens.
import { useState } from "react";
import type { Member, Project } from "@/shared/api/types";
import { useBarriers } from "@/shared/api/useMay";
import { command } from "@/shared/format/shell";
import { Button } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Table } from "@/shared/ui/table/Table";
import { COLUMNS, MemberCells } from "../members/MemberCells";
import { MemberDialog } from "../members/MemberDialog";
import { EndAccountDialog, NewAccountDialog } from "./AccountDialogs";
import { TokensDialog } from "./TokensDialog";

type Verb = "tokens" | "change" | "delete";
type Opened = { dialog: "new" } | { dialog: Verb; account: Member };

interface ServiceAccountsProps {
  project: Project;
  /** Members of kind `service`. */
  accounts: readonly Member[];
}

export function ServiceAccounts({ project, accounts }: ServiceAccountsProps) {
  const { name } = project;
  const [opened, setOpened] = useState<Opened | null>(null);
  const barrier = useBarriers()("members:write", name);
  return (
    <section className="members-part" aria-labelledby="service-accounts">
      <div className="members-head row">
        <h2 id="service-accounts">Service accounts</h2>
        <Button barrier={barrier} onClick={() => setOpened({ dialog: "new" })}>
          New service account
        </Button>
      </div>
      {accounts.length === 0 ? (
        <p className="panel members-none muted">
          None. A service account lets a program submit jobs of the project without a person’s
          token.
        </p>
      ) : (
        <Table label="Service accounts" columns={COLUMNS} className="members cards">
          {accounts.map((account) => (
            <AccountRow
              key={account.user}
              account={account}
              mayWrite={!barrier}
              onOpen={(dialog) => setOpened({ dialog, account })}
            />
          ))}
        </Table>
      )}
      {!barrier && (
        <CommandLine
          command={command("service-accounts", "--project", name)}
          label="Lists the same accounts"
        />
      )}
      {opened && <OpenedDialog opened={opened} project={project} onClose={() => setOpened(null)} />}
    </section>
  );
}

interface OpenedProps {
  opened: Opened;
  project: Project;
  onClose: () => void;
}

function OpenedDialog({ opened, project, onClose }: OpenedProps) {
  const { name } = project;
  if (opened.dialog === "new") return <NewAccountDialog project={name} onClose={onClose} />;
  const { dialog, account } = opened;
  if (dialog === "tokens") {
    const of = { project: name, name: account.user, role: account.role };
    return <TokensDialog account={of} onClose={onClose} />;
  }
  if (dialog === "change") {
    return <MemberDialog project={project} member={account} members={[]} onClose={onClose} />;
  }
  return <EndAccountDialog project={name} account={account.user} onClose={onClose} />;
}

interface AccountRowProps {
  account: Member;
  mayWrite: boolean;
  onOpen: (verb: Verb) => void;
}

function AccountRow({ account, mayWrite, onOpen }: AccountRowProps) {
  const { user } = account;
  return (
    <tr>
      <MemberCells
        member={account}
        actions={
          mayWrite && (
            <>
              <Button small aria-label={`Tokens of ${user}`} onClick={() => onOpen("tokens")}>
                Tokens
              </Button>
              <Button
                small
                aria-label={`Change role and limits of ${user}`}
                onClick={() => onOpen("change")}
              >
                Change
              </Button>
              <Button small aria-label={`Delete ${user}`} onClick={() => onOpen("delete")}>
                Delete
              </Button>
            </>
          )
        }
      />
    </tr>
  );
}
