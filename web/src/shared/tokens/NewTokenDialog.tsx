// Creates a token of the caller or of a service account, and shows its secret once, with its use.

import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { api, ask } from "@/shared/api/client";
import { errorAt } from "@/shared/api/errors";
import { keys } from "@/shared/api/queries";
import type { Permission, Session, Token, TokenRequest } from "@/shared/api/types";
import { useSession } from "@/shared/api/useMay";
import { joinCommand, quoted } from "@/shared/format/shell";
import { Button } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Dialog } from "@/shared/ui/Dialog";
import { Field } from "@/shared/ui/Field";
import { InlineError } from "@/shared/ui/Notice";
import { loginPath } from "@/shared/url/pages";
import { type Account, heldBy, postAccountToken, tokenCommand } from "./account";
import { Scopes } from "./Scopes";
import { SecretDialog } from "./SecretDialog";
import "./tokens.css";

type Kind = NonNullable<TokenRequest["kind"]>;

const KINDS: Record<Kind, string> = {
  api: "For a person or a program, with the permissions below.",
  join: "Lets one new machine join, once.",
  login: "A link that logs one browser in as admin, once.",
};

const LIFETIMES: Record<Kind, readonly (readonly [string, number])[]> = {
  api: [
    ["1 year", 365 * 86_400],
    ["90 days", 90 * 86_400],
    ["30 days", 30 * 86_400],
    ["1 day", 86_400],
  ],
  join: [
    ["1 hour", 3_600],
    ["1 day", 86_400],
  ],
  login: [
    ["10 minutes", 600],
    ["2 minutes", 120],
  ],
};

/** Return the kinds of tokens that the caller may create. */
function kindsFor(session: Session | null | undefined): Kind[] {
  if (!session?.permissions.includes("tokens:admin")) return ["api"];
  return session.kind === "admin" ? ["api", "join", "login"] : ["api", "join"];
}

interface NewTokenDialogProps {
  /** The service account of the token; absent for the caller. */
  account?: Account;
  onClose: () => void;
}

export function NewTokenDialog({ account, onClose }: NewTokenDialogProps) {
  const session = useSession();
  const kinds = account ? (["api"] as const) : kindsFor(session);
  const permissions = session?.permissions ?? [];
  const held = account ? heldBy(account.role, permissions) : permissions;
  const [name, setName] = useState("");
  const [kind, setKind] = useState<Kind>("api");
  const [seconds, setSeconds] = useState(LIFETIMES.api[0]?.[1] ?? 0);
  const [scopes, setScopes] = useState<Permission[] | null>(null);
  const client = useQueryClient();
  const make = useMutation({
    mutationFn: () => {
      if (account) return postAccountToken(account, { name, scopes, expires_in_seconds: seconds });
      const body = { name, kind, expires_in_seconds: seconds };
      return ask(api.POST("/api/v1/tokens", { body: kind === "api" ? { ...body, scopes } : body }));
    },
    onSuccess: () => client.invalidateQueries({ queryKey: account ? keys.projects : keys.tokens }),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    make.mutate();
  };
  if (make.data?.secret) return <Made token={make.data} onClose={onClose} />;
  const [nameError, scopesError] = [errorAt(make.error, "/name"), errorAt(make.error, "/scopes")];
  return (
    <Dialog
      title={account ? `New token of ${account.name}` : "New token"}
      onClose={onClose}
      footer={
        <>
          <Button onClick={onClose}>Back</Button>
          <Button type="submit" form="new-token" look="primary" busy={make.isPending}>
            Create token
          </Button>
        </>
      }
    >
      <form id="new-token" className="stack" onSubmit={submit}>
        <Field htmlFor="token-name" label="Name" help="What it is for." error={nameError}>
          <input
            id="token-name"
            className="input"
            required
            maxLength={80}
            placeholder={account ? "ci" : "ada-laptop"}
            value={name}
            aria-describedby="token-name-said"
            onChange={(event) => setName(event.target.value)}
          />
        </Field>
        {kinds.length > 1 && (
          <Field htmlFor="token-kind" label="Kind" help={KINDS[kind]}>
            <select
              id="token-kind"
              className="select"
              value={kind}
              aria-describedby="token-kind-said"
              onChange={(event) => {
                const chosen = event.target.value as Kind;
                setKind(chosen);
                setSeconds(LIFETIMES[chosen][0]?.[1] ?? 0);
              }}
            >
              {kinds.map((each) => (
                <option key={each}>{each}</option>
              ))}
            </select>
          </Field>
        )}
        {kind === "api" && (
          <Scopes
            held={held}
            whose={account ? "the account" : "you"}
            scopes={scopes}
            error={scopesError}
            onChange={setScopes}
          />
        )}
        <Field htmlFor="token-life" label="Valid for">
          <select
            id="token-life"
            className="select"
            value={seconds}
            onChange={(event) => setSeconds(Number(event.target.value))}
          >
            {LIFETIMES[kind].map(([label, value]) => (
              <option key={value} value={value}>
                {label}
              </option>
            ))}
          </select>
        </Field>
      </form>
      {make.isError && !nameError && !scopesError && <InlineError error={make.error} />}
      {account && <CommandLine command={tokenCommand(account, name, scopes, seconds)} />}
    </Dialog>
  );
}

function Made({ token, onClose }: { token: Token; onClose: () => void }) {
  return (
    <SecretDialog
      title={`Token ${token.name}`}
      command={useOf(token)}
      label="Usage"
      isText={token.kind === "login"}
      onClose={onClose}
    >
      The token is shown once: the server stores only its hash.
    </SecretDialog>
  );
}

function useOf(token: Token): string {
  const { origin } = window.location;
  const secret = token.secret ?? "";
  switch (token.kind) {
    case "login":
      return origin + loginPath({ code: secret });
    case "join":
      return joinCommand(origin, secret);
    default:
      return `export TRAINYARD_URL=${quoted(origin)} TRAINYARD_TOKEN=${quoted(secret)}`;
  }
}
