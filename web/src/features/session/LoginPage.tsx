// The login: with a token, or automatically with the code of a one-time link.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useEffect, useRef, useState } from "react";
import { useNavigate } from "react-router";
import { api, ask } from "@/shared/api/client";
import { beginSession } from "@/shared/api/session";
import { Button } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Field } from "@/shared/ui/Field";
import { InlineError } from "@/shared/ui/Notice";
import { LOGIN } from "@/shared/url/pages";
import { usePageParams } from "@/shared/url/params";
import { nextPath } from "./nextPath";
import "./session.css";

export function LoginPage() {
  const [{ code, next }] = usePageParams(LOGIN);
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
        <TokenForm logIn={logIn} />
      )}
    </main>
  );
}

type LogIn = ReturnType<typeof useLogIn>;

function useLogIn(next: string) {
  const client = useQueryClient();
  const navigate = useNavigate();
  return useMutation({
    mutationFn: (body: { token?: string; code?: string }) =>
      ask(api.POST("/api/v1/auth/session", { body })),
    onSuccess: (session) => {
      beginSession(client, session);
      void navigate(next, { replace: true });
    },
  });
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
          // biome-ignore lint/a11y/noAutofocus: it is the only thing on the page
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
