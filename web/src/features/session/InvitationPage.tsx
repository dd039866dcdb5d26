// The page of an invitation: its code, which is in the part of the address after `#`, sets a password.
import { queryOptions, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, type ReactNode, useEffect, useState } from "react";
import { useLocation, useNavigate } from "react-router";
import { useIssuer } from "@/shared/accounts/issuer";
import { PasswordField, UserNameForManagers } from "@/shared/accounts/PasswordField";
import { api, ask } from "@/shared/api/client";
import { errorAt, isUnauthenticated } from "@/shared/api/errors";
import type { components } from "@/shared/api/schema";
import { beginSession, SENDS_SECRET } from "@/shared/api/session";
import { moment } from "@/shared/format/time";
import { Button, ButtonLink } from "@/shared/ui/Button";
import { InlineError } from "@/shared/ui/Notice";
import { SkeletonLines } from "@/shared/ui/Skeleton";
import "./session.css";

type Invitation = components["schemas"]["InvitationCheck"];

/** The invitation of a code. A check counts as a login, so a refused code is not checked again. */
const invitationQuery = (code: string) =>
  queryOptions({
    queryKey: ["invitation", code],
    queryFn: ({ signal }) =>
      ask(api.POST("/api/v1/auth/invitation/check", { body: { code }, signal })),
    enabled: code !== "",
    meta: SENDS_SECRET,
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 0,
  });

export function InvitationPage() {
  const code = useCodeOfAddress();
  const invitation = useQuery(invitationQuery(code));
  return (
    <main className="login">
      <title>Invitation · Trainyard</title>
      <img src="/mark.svg" width="40" height="40" alt="" />
      {code === "" ? (
        <NoInvitation title="This page needs an invitation">
          <p>Open the link of your invitation again: the address no longer has its code.</p>
          <ButtonLink to="/login">Log in</ButtonLink>
        </NoInvitation>
      ) : isUnauthenticated(invitation.error) ? (
        <UsedUp />
      ) : invitation.data ? (
        <PasswordForm key={code} code={code} invitation={invitation.data} />
      ) : invitation.error ? (
        <NoInvitation title="The invitation was not checked">
          <InlineError error={invitation.error} />
          <Button busy={invitation.isFetching} onClick={() => void invitation.refetch()}>
            Try again
          </Button>
        </NoInvitation>
      ) : (
        <SkeletonLines lines={3} />
      )}
    </main>
  );
}

/** Return the code, and remove it from the address and the history of the browser. */
function useCodeOfAddress(): string {
  const { hash, pathname } = useLocation();
  const navigate = useNavigate();
  const [code, setCode] = useState(hash.slice(1));
  useEffect(() => {
    if (!hash) return;
    setCode(hash.slice(1));
    void navigate(pathname, { replace: true });
  }, [hash, pathname, navigate]);
  return code;
}

function UsedUp() {
  return (
    <NoInvitation title="This invitation is no longer valid">
      <p>
        A link works once, for seven days, and a newer link replaces it. If you have set your
        password already, log in. Otherwise an admin can give you a new link: under Users, or by
        this command.
      </p>
      <code>trainyard users reset NAME</code>
      <ButtonLink look="primary" to="/login">
        Log in
      </ButtonLink>
    </NoInvitation>
  );
}

function NoInvitation({ title, children }: { title: string; children: ReactNode }) {
  return (
    <>
      <h1>{title}</h1>
      <div className="invitation-problem stack" role="alert">
        {children}
      </div>
    </>
  );
}

interface PasswordFormProps {
  code: string;
  invitation: Invitation;
}

/** Accept the invitation by a login at the issuer, in place of a password. */
function AcceptByIssuer({ name, code }: { name: string; code: string }) {
  const accept = useMutation({
    meta: SENDS_SECRET,
    mutationFn: () => ask(api.POST("/api/v1/auth/oidc/invitation", { body: { code } })),
    onSuccess: ({ url }) => window.location.assign(url),
  });
  return (
    <>
      <Button
        look="primary"
        className="issuer-button"
        busy={accept.isPending}
        onClick={() => accept.mutate()}
      >
        Accept with {name}
      </Button>
      {accept.isError && <InlineError error={accept.error} />}
    </>
  );
}

function PasswordForm({ code, invitation }: PasswordFormProps) {
  const issuer = useIssuer();
  const { name, expires_at, replaces_password } = invitation;
  const [password, setPassword] = useState("");
  const client = useQueryClient();
  const navigate = useNavigate();
  const accept = useMutation({
    meta: SENDS_SECRET,
    mutationFn: () => ask(api.POST("/api/v1/auth/invitation", { body: { code, password } })),
    onSuccess: (session) => {
      beginSession(client, session);
      void navigate("/jobs", { replace: true });
    },
  });
  if (isUnauthenticated(accept.error)) return <UsedUp />;
  const passwordError = errorAt(accept.error, "/password");
  const submit = (event: FormEvent) => {
    event.preventDefault();
    accept.mutate();
  };
  return (
    <>
      <h1>{replaces_password ? `A new password for ${name}` : `Welcome, ${name}`}</h1>
      {issuer && <AcceptByIssuer name={issuer} code={code} />}
      <form className="login-form stack" onSubmit={submit}>
        {replaces_password ? (
          <p className="muted">
            Your sessions, API tokens and open commands end, and this browser is logged in.
          </p>
        ) : (
          <p className="muted">
            Set a password. You log in with the name <b>{name}</b> and this password.
          </p>
        )}
        <UserNameForManagers name={name} />
        <PasswordField
          id="new-password"
          label="New password"
          autoComplete="new-password"
          value={password}
          error={passwordError}
          onChange={setPassword}
        />
        {accept.isError && !passwordError && <InlineError error={accept.error} />}
        <Button type="submit" look="primary" busy={accept.isPending}>
          Set the password and log in
        </Button>
        <p className="login-help small">The link works once, until {moment(expires_at)}.</p>
      </form>
    </>
  );
}
