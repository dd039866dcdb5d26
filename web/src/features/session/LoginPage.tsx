// The login: by name and password, with a token, or automatically with the code of a one-time link.
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useEffect, useRef, useState } from "react";
import { IssuerButton, IssuerFault } from "@/shared/accounts/issuer";
import { PasswordField } from "@/shared/accounts/PasswordField";
import { waysQuery } from "@/shared/accounts/waysQuery";
import { Button } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Field } from "@/shared/ui/Field";
import { InlineError } from "@/shared/ui/Notice";
import { LOGIN } from "@/shared/url/pages";
import { usePageParams } from "@/shared/url/params";
import { nextPath } from "./nextPath";
import { type LogIn, useLogIn } from "./useLogIn";
import "./session.css";

export function LoginPage() {
  const [{ code, next, error }] = usePageParams(LOGIN);
  const logIn = useLogIn(nextPath(next));
  const used = useRef<string | null>(null);
  useEffect(() => {
    // A code works once: React's second effect in development must not use it again.
    if (!code || used.current === code) return;
    used.current = code;
    logIn.mutate({ code });
  });
  return (
    <main className="login">
      <title>Log in · Trainyard</title>
      <img src="/mark.svg" width="40" height="40" alt="" />
      <h1>Log in to Trainyard</h1>
      {code && !logIn.isError ? (
        <p className="muted" role="status">
          Logging in…
        </p>
      ) : (
        <>
          <IssuerFault code={error} />
          <LoginForm logIn={logIn} next={nextPath(next)} />
        </>
      )}
    </main>
  );
}

/** The button of the issuer, the form for the likeliest other way, and a link to the third one. */
function LoginForm({ logIn, next }: { logIn: LogIn; next: string }) {
  const ways = useQuery(waysQuery);
  const [isByToken, setIsByToken] = useState(false);
  if (ways.isPending) return null;
  // Without an answer, the form of the way that every server has.
  const hasPasswords = ways.data?.ways.some(({ kind }) => kind === "password") ?? false;
  const change = (byToken: boolean) => {
    logIn.reset();
    setIsByToken(byToken);
  };
  const issuer = ways.data?.ways.find(({ kind }) => kind === "issuer")?.name;
  const button = issuer && <IssuerButton name={issuer} next={next} />;
  if (!hasPasswords) {
    return (
      <>
        {button}
        <TokenForm logIn={logIn} />
      </>
    );
  }
  return (
    <>
      {button}
      {isByToken ? <TokenForm logIn={logIn} /> : <NameForm logIn={logIn} />}
      <Button look="quiet" small onClick={() => change(!isByToken)}>
        {isByToken ? "Log in with name and password" : "Log in with a token"}
      </Button>
    </>
  );
}

function NameForm({ logIn }: { logIn: LogIn }) {
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  const submit = (event: FormEvent) => {
    event.preventDefault();
    logIn.mutate({ name: name.trim(), password });
  };
  return (
    <form className="login-form stack" onSubmit={submit}>
      <Field htmlFor="name" label="Name">
        <input
          id="name"
          className="input"
          name="username"
          autoComplete="username"
          autoCapitalize="none"
          spellCheck={false}
          // biome-ignore lint/a11y/noAutofocus: the form is the only thing on the page
          autoFocus
          required
          maxLength={100}
          value={name}
          aria-describedby="name-said"
          onChange={(event) => setName(event.target.value)}
        />
      </Field>
      <PasswordField
        id="password"
        label="Password"
        autoComplete="current-password"
        value={password}
        onChange={setPassword}
      />
      {logIn.isError && <InlineError error={logIn.error} />}
      <Button type="submit" look="primary" busy={logIn.isPending}>
        Log in
      </Button>
      <p className="login-help small">
        If you have forgotten the password, an admin can give you a link for a new one.
      </p>
    </form>
  );
}

function TokenForm({ logIn }: { logIn: LogIn }) {
  const [token, setToken] = useState("");
  const submit = (event: FormEvent) => {
    event.preventDefault();
    logIn.mutate({ token: token.trim() });
  };
  return (
    <form className="login-form stack" onSubmit={submit}>
      <Field htmlFor="token" label="Token">
        <input
          id="token"
          className="input mono"
          type="password"
          autoComplete="current-password"
          // biome-ignore lint/a11y/noAutofocus: the form is the only thing on the page
          autoFocus
          required
          placeholder="ty_admin_…"
          value={token}
          aria-describedby="token-said"
          onChange={(event) => setToken(event.target.value)}
        />
      </Field>
      {logIn.isError && <InlineError error={logIn.error} />}
      <Button type="submit" look="primary" busy={logIn.isPending}>
        Log in
      </Button>
      <div className="login-help">
        <p>
          If the server runs on this machine, this command opens the dashboard with a one-time link.
          The admin token is in <code>admin.token</code> in the server’s state folder.
        </p>
        <CommandLine command="trainyard up" />
      </div>
    </form>
  );
}
