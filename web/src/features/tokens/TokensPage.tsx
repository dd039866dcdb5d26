// Creates, lists and revokes the tokens of people, programs and nodes.
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { tokensQuery } from "@/shared/api/queries";
import type { Token } from "@/shared/api/types";
import { Badge, type Tone } from "@/shared/ui/Badge";
import { Button } from "@/shared/ui/Button";
import { Absent } from "@/shared/ui/Notice";
import { RelativeTime } from "@/shared/ui/RelativeTime";
import { type Column, Table } from "@/shared/ui/table/Table";
import { NewTokenDialog } from "./NewTokenDialog";
import { RevokeDialog } from "./RevokeDialog";
import { until } from "./until";
import "./tokens.css";

const COLUMNS: readonly Column[] = [
  { name: "name", label: "Name" },
  { name: "kind", label: "Kind" },
  { name: "scopes", label: "Scopes" },
  { name: "created", label: "Age", number: true },
  { name: "used", label: "Last used", number: true },
  { name: "expires", label: "Ends", number: true },
  { name: "action", label: <span className="visually-hidden">Action</span> },
];

const TONES: Record<Token["kind"], Tone> = {
  admin: "warn",
  api: "accent",
  join: "neutral",
  login: "neutral",
  node: "ok",
  source: "ok",
};

export function TokensPage() {
  const tokens = useQuery(tokensQuery);
  const [isNew, setIsNew] = useState(false);
  const [revoked, setRevoked] = useState<Token | null>(null);
  return (
    <>
      <title>Tokens · Trainyard</title>
      <header className="page-header">
        <h1>Tokens</h1>
        {tokens.data && (
          <Button look="primary" onClick={() => setIsNew(true)}>
            New token
          </Button>
        )}
      </header>
      {tokens.data ? (
        <Table label="Tokens" columns={COLUMNS} className="tokens">
          {tokens.data.map((token) => (
            <TokenRow key={token.id} token={token} onRevoke={setRevoked} />
          ))}
        </Table>
      ) : (
        <Absent query={tokens} />
      )}
      {isNew && <NewTokenDialog onClose={() => setIsNew(false)} />}
      {revoked && <RevokeDialog token={revoked} onClose={() => setRevoked(null)} />}
    </>
  );
}

interface TokenRowProps {
  token: Token;
  onRevoke: (token: Token) => void;
}

function TokenRow({ token, onRevoke }: TokenRowProps) {
  return (
    <tr>
      <td className="token-name ellipsis">{token.name}</td>
      <td className="token-kind">
        <Badge tone={TONES[token.kind]}>{token.kind}</Badge>
      </td>
      <td className="token-scopes small">
        {token.scopes?.join(" ") ?? (token.kind === "api" && "all of an API token")}
      </td>
      <td className="token-age number">
        <RelativeTime at={token.created_at} />
      </td>
      <td className="token-used number">
        {token.last_used_at ? <RelativeTime at={token.last_used_at} /> : "never"}
      </td>
      <td className="token-ends number">{until(token.expires_at)}</td>
      <td className="token-action number">
        {token.kind === "admin" ? (
          <span className="muted" title="python -m server admin-token replaces it">
            stays
          </span>
        ) : (
          <Button
            small
            look="quiet"
            aria-label={`Revoke ${token.name}`}
            onClick={() => onRevoke(token)}
          >
            Revoke
          </Button>
        )}
      </td>
    </tr>
  );
}
