// The tokens of a service account: creates and revokes them.
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { command } from "@/shared/format/shell";
import { type Account, accountTokensQuery } from "@/shared/tokens/account";
import { NewTokenDialog } from "@/shared/tokens/NewTokenDialog";
import { TokenTable } from "@/shared/tokens/TokenTable";
import { Button } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Dialog } from "@/shared/ui/Dialog";
import { Absent } from "@/shared/ui/Notice";

interface TokensDialogProps {
  account: Account;
  onClose: () => void;
}

export function TokensDialog({ account, onClose }: TokensDialogProps) {
  const tokens = useQuery({ ...accountTokensQuery(account), staleTime: 0 });
  const [isNew, setIsNew] = useState(false);
  if (isNew) return <NewTokenDialog account={account} onClose={() => setIsNew(false)} />;
  const { project, name } = account;
  return (
    <Dialog
      wide
      title={`Tokens of ${name}`}
      onClose={onClose}
      footer={
        <>
          <Button onClick={onClose}>Close</Button>
          <Button look="primary" onClick={() => setIsNew(true)}>
            New token
          </Button>
        </>
      }
    >
      <p className="muted">
        The tokens belong to the project: they do not end with the role of the person who made them.
      </p>
      {!tokens.data ? (
        <Absent query={tokens} lines={3} />
      ) : tokens.data.length === 0 ? (
        <p className="panel members-none muted">None. A program uses a token to act as {name}.</p>
      ) : (
        <TokenTable tokens={tokens.data} account={account} />
      )}
      <CommandLine
        command={command("service-accounts", "tokens", name, "--project", project)}
        label="Lists the same tokens"
      />
    </Dialog>
  );
}
