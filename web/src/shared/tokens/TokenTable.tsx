// A list of tokens, each with the button that revokes it.
import { useState } from "react";
import type { Token } from "@/shared/api/types";
import { NONE } from "@/shared/format/numbers";
import { Badge, type Tone } from "@/shared/ui/Badge";
import { Button } from "@/shared/ui/Button";
import { cx } from "@/shared/ui/cx";
import { RelativeTime } from "@/shared/ui/RelativeTime";
import { type Column, Table } from "@/shared/ui/table/Table";
import type { Account } from "./account";
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
const COLUMNS_WITH_USER = COLUMNS.toSpliced(1, 0, { name: "user", label: "User" });

const TONES: Record<Token["kind"], Tone> = {
  admin: "warn",
  api: "accent",
  join: "neutral",
  login: "neutral",
  node: "ok",
  source: "ok",
};

interface TokenTableProps {
  tokens: readonly Token[];
  /** Whether the tokens belong to several users. */
  hasUsers?: boolean;
  /** The service account of all tokens. */
  account?: Account | null;
}

export function TokenTable({ tokens, hasUsers = false, account = null }: TokenTableProps) {
  const [revoked, setRevoked] = useState<Token | null>(null);
  return (
    <>
      <Table
        label="Tokens"
        columns={hasUsers ? COLUMNS_WITH_USER : COLUMNS}
        className={cx("tokens cards", hasUsers && "tokens-of-users")}
      >
        {tokens.map((token) => (
          <TokenRow key={token.id} token={token} hasUser={hasUsers} onRevoke={setRevoked} />
        ))}
      </Table>
      {revoked && (
        <RevokeDialog token={revoked} account={account} onClose={() => setRevoked(null)} />
      )}
    </>
  );
}

interface TokenRowProps {
  token: Token;
  hasUser: boolean;
  onRevoke: (token: Token) => void;
}

function TokenRow({ token, hasUser, onRevoke }: TokenRowProps) {
  return (
    <tr>
      <td className="token-name ellipsis">{token.name}</td>
      {hasUser && <td className="token-user muted ellipsis">{token.user ?? NONE}</td>}
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
