// The page of the caller: who it is, browser sessions, API tokens and the password.
import { useQuery } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { Link } from "react-router";
import { tokensQuery } from "@/shared/api/queries";
import type { Session } from "@/shared/api/types";
import { callerOf, isOfPerson, useMay, useSession } from "@/shared/api/useMay";
import { moment } from "@/shared/format/time";
import { Secrets } from "@/shared/secrets/Secrets";
import { NewTokenDialog } from "@/shared/tokens/NewTokenDialog";
import { TokenTable } from "@/shared/tokens/TokenTable";
import { Badge } from "@/shared/ui/Badge";
import { Button } from "@/shared/ui/Button";
import { Fact } from "@/shared/ui/Field";
import { Absent } from "@/shared/ui/Notice";
import { ChangePassword } from "./ChangePassword";
import { LinkedIssuer } from "./LinkedIssuer";
import { Part } from "./Part";
import { Sessions } from "./Sessions";
import "./profile.css";

export function ProfilePage() {
  const session = useSession();
  const managesTokens = useMay("tokens:admin");
  if (!session) return null;
  return (
    <>
      <title>Profile · Trainyard</title>
      <header className="page-header">
        <h1>{callerOf(session)}</h1>
        {session.user && isOfPerson(session) && <Badge>{session.user.role}</Badge>}
      </header>
      <div className="stack profile">
        <AboutCaller session={session} />
        <Sessions />
        {(isOfPerson(session) || managesTokens) && <OwnTokens managesAll={managesTokens} />}
        {isOfPerson(session) && (
          <Secrets
            holder={null}
            headingId="own-secrets"
            barrier={null}
            purpose="An own secret gives your jobs a value, such as an access token, that no page shows."
          />
        )}
      </div>
    </>
  );
}

const LOGINS: Partial<Record<Session["kind"], string>> = {
  password: "by password",
  issuer: "by single sign-on",
};

function AboutCaller({ session }: { session: Session }) {
  const { user } = session;
  const isPerson = isOfPerson(session);
  return (
    <Part title="Account">
      <div className="panel profile-account">
        <dl className="facts-column">
          {isPerson && <Fact name="E-mail">{user?.email ?? "none"}</Fact>}
          <Fact name="Logged in">
            {LOGINS[session.kind] ?? `with the token ${session.name}`}
            {session.expires_at && `, until ${moment(session.expires_at)}`}
          </Fact>
          {isPerson && <Fact name="Password">{passwordOf(user)}</Fact>}
          {isPerson && (
            <LinkedIssuer issuer={user?.issuer ?? null} hasPassword={user?.has_password ?? false} />
          )}
        </dl>
        {isPerson && (
          <p className="small muted">
            An admin changes the role and the e-mail address. The name never changes.
          </p>
        )}
      </div>
    </Part>
  );
}

function passwordOf(user: Session["user"]): ReactNode {
  return user?.has_password ? (
    <ChangePassword name={user.name} />
  ) : (
    "none; an admin can give you a link that sets one"
  );
}

function OwnTokens({ managesAll }: { managesAll: boolean }) {
  const tokens = useQuery(tokensQuery(false));
  const [isNew, setIsNew] = useState(false);
  const shown = tokens.data?.filter(({ kind }) => kind === "api");
  return (
    <Part
      title="API tokens"
      actions={
        <>
          {managesAll && <Link to="/tokens">All tokens</Link>}
          <Button onClick={() => setIsNew(true)}>New token</Button>
        </>
      }
    >
      {!shown ? (
        <Absent query={tokens} lines={2} />
      ) : shown.length === 0 ? (
        <p className="panel profile-none muted">
          None. A token lets the command line or a program act as you.
        </p>
      ) : (
        <TokenTable tokens={shown} />
      )}
      {isNew && <NewTokenDialog onClose={() => setIsNew(false)} />}
    </Part>
  );
}
