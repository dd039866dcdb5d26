// The page on which a person approves the login of a command line: its code is typed, or in the link.
import { useMutation } from "@tanstack/react-query";
import { type FormEvent, useEffect, useState } from "react";
import { useLocation, useNavigate } from "react-router";
import { api, ask } from "@/shared/api/client";
import type { components } from "@/shared/api/schema";
import { useSession } from "@/shared/api/useMay";
import { Button } from "@/shared/ui/Button";
import { Fact, Field } from "@/shared/ui/Field";
import { EmptyState, InlineError } from "@/shared/ui/Notice";
import "./session.css";

type Device = components["schemas"]["DeviceView"];

const DAY_SECONDS = 86_400;
const HOUR_SECONDS = 3_600;

export function DevicePage() {
  const { hash, pathname } = useLocation();
  const navigate = useNavigate();
  const [code, setCode] = useState(hash.slice(1));
  useEffect(() => {
    // The code leaves the address and the history of the browser.
    if (hash) void navigate(pathname, { replace: true });
  }, [hash, pathname, navigate]);
  const check = useMutation({
    mutationFn: () => ask(api.POST("/api/v1/auth/device/check", { body: { user_code: code } })),
  });
  const decide = useMutation({
    mutationFn: (approved: boolean) =>
      ask(api.POST("/api/v1/auth/device/decision", { body: { user_code: code, approved } })),
  });
  if (decide.isSuccess) {
    return (
      <EmptyState title={decide.variables ? "The device is logged in" : "The login is denied"}>
        <p>You can close this page.</p>
      </EmptyState>
    );
  }
  return (
    <div className="login">
      <title>Log in a device · Trainyard</title>
      <h1>Log in a device</h1>
      {check.data ? (
        <Decision device={check.data} decide={decide} />
      ) : (
        <CodeForm code={code} setCode={setCode} check={check} />
      )}
    </div>
  );
}

interface CodeFormProps {
  code: string;
  setCode: (code: string) => void;
  check: { mutate: () => void; isPending: boolean; error: unknown };
}

function CodeForm({ code, setCode, check }: CodeFormProps) {
  const submit = (event: FormEvent) => {
    event.preventDefault();
    check.mutate();
  };
  return (
    <form className="login-form stack" onSubmit={submit}>
      <Field htmlFor="user-code" label="Code">
        <input
          id="user-code"
          className="input mono"
          // biome-ignore lint/a11y/noAutofocus: the form is the only thing on the page
          autoFocus
          autoComplete="off"
          spellCheck={false}
          required
          maxLength={40}
          placeholder="BCDF-GHJK"
          value={code}
          aria-describedby="user-code-said"
          onChange={(event) => setCode(event.target.value)}
        />
      </Field>
      {check.error != null && <InlineError error={check.error} />}
      <Button type="submit" look="primary" busy={check.isPending}>
        Continue
      </Button>
      <p className="login-help small">
        The command <code>trainyard login</code> prints the code. Continue only if you have started
        the command yourself.
      </p>
    </form>
  );
}

interface DecisionProps {
  device: Device;
  decide: { mutate: (approved: boolean) => void; isPending: boolean; error: unknown };
}

function Decision({ device, decide }: DecisionProps) {
  const session = useSession();
  return (
    <div className="login-form stack">
      <dl className="facts-column">
        <Fact name="Device">{device.host}</Fact>
        <Fact name="Address">{device.address}</Fact>
        <Fact name="Acts as">{session?.user?.name ?? session?.name}</Fact>
        <Fact name="Permissions">
          {device.scopes?.join(", ") ??
            "all of yours except managing users, tokens and sources of nodes"}
        </Fact>
        <Fact name="Valid for">{lifetime(device.lifetime_seconds)}</Fact>
      </dl>
      {!device.same_address && (
        <p>
          <strong>The device has another address than this browser.</strong> That is usual over ssh.
          If a person has sent you the link or the code, deny the login.
        </p>
      )}
      <p className="muted">
        Approve only if you have just started <code>trainyard login</code> on this device.
      </p>
      {decide.error != null && <InlineError error={decide.error} />}
      <div className="row">
        <Button look="primary" busy={decide.isPending} onClick={() => decide.mutate(true)}>
          Approve
        </Button>
        <Button busy={decide.isPending} onClick={() => decide.mutate(false)}>
          Deny
        </Button>
      </div>
    </div>
  );
}

function lifetime(seconds: number): string {
  const days = Math.round(seconds / DAY_SECONDS);
  if (days >= 1) return days === 1 ? "1 day" : `${days} days`;
  const hours = Math.round(seconds / HOUR_SECONDS);
  return hours === 1 ? "1 hour" : hours > 1 ? `${hours} hours` : "less than an hour";
}
