// Creates, lists and revokes tokens: the own ones, or those of all users and machines.
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { tokensQuery } from "@/shared/api/queries";
import { useIsShared, useMay } from "@/shared/api/useMay";
import { NewTokenDialog } from "@/shared/tokens/NewTokenDialog";
import { TokenTable } from "@/shared/tokens/TokenTable";
import { Button } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Absent, EmptyState } from "@/shared/ui/Notice";
import { TOKENS } from "@/shared/url/pages";
import { usePageParams } from "@/shared/url/params";

export function TokensPage() {
  const [view, change] = usePageParams(TOKENS);
  const isShared = useIsShared();
  const maySeeAll = useMay("tokens:admin");
  // On a server of one person, all tokens belong to this person or to machines.
  const isAll = maySeeAll && (view.isAll || !isShared);
  const tokens = useQuery(tokensQuery(isAll));
  const [isNew, setIsNew] = useState(false);
  return (
    <>
      <title>Tokens · Trainyard</title>
      <header className="page-header">
        <h1>Tokens</h1>
        {isShared && maySeeAll && (
          <WhoseTokens isAll={isAll} onChange={(all) => change({ isAll: all })} />
        )}
        {tokens.data && (
          <Button look="primary" onClick={() => setIsNew(true)}>
            New token
          </Button>
        )}
      </header>
      {!tokens.data ? (
        <Absent query={tokens} />
      ) : tokens.data.length === 0 ? (
        <EmptyState title="No token yet">
          <p>A token lets the command line or a program act as you.</p>
        </EmptyState>
      ) : (
        <div className="stack">
          <TokenTable tokens={tokens.data} hasUsers={isAll && isShared} />
          <CommandLine
            command={isAll ? "trainyard tokens --all" : "trainyard tokens"}
            label="Lists the same tokens"
          />
        </div>
      )}
      {isNew && <NewTokenDialog onClose={() => setIsNew(false)} />}
    </>
  );
}

interface WhoseTokensProps {
  isAll: boolean;
  onChange: (isAll: boolean) => void;
}

function WhoseTokens({ isAll, onChange }: WhoseTokensProps) {
  return (
    <fieldset className="segments segments-small">
      <legend className="visually-hidden">Whose tokens</legend>
      <button
        type="button"
        className="segment"
        aria-pressed={!isAll}
        onClick={() => onChange(false)}
      >
        mine
      </button>
      <button type="button" className="segment" aria-pressed={isAll} onClick={() => onChange(true)}>
        all
      </button>
    </fieldset>
  );
}
