// The linked identity of the caller, or the button that links one.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { IssuerFault, useIssuer } from "@/shared/accounts/issuer";
import { PasswordField } from "@/shared/accounts/PasswordField";
import { api, ask } from "@/shared/api/client";
import { isUnauthenticated } from "@/shared/api/errors";
import { keys } from "@/shared/api/queries";
import { SENDS_SECRET } from "@/shared/api/session";
import { Button } from "@/shared/ui/Button";
import { ActionDialog } from "@/shared/ui/Dialog";
import { Fact } from "@/shared/ui/Field";
import { InlineError } from "@/shared/ui/Notice";
import { PROFILE } from "@/shared/url/pages";
import { usePageParams } from "@/shared/url/params";

interface LinkedIssuerProps {
  issuer: string | null;
  hasPassword: boolean;
}

export function LinkedIssuer({ issuer, hasPassword }: LinkedIssuerProps) {
  const [{ error }] = usePageParams(PROFILE);
  const name = useIssuer();
  if (issuer === null && name === null) return null;
  return (
    <Fact name="Single sign-on">
      {issuer !== null ? (
        <Linked issuer={issuer} mayUnlink={hasPassword} />
      ) : (
        <LinkForm name={name ?? ""} hasPassword={hasPassword} />
      )}
      <IssuerFault code={error} />
    </Fact>
  );
}

interface LinkedProps {
  issuer: string;
  /** Without a password, the person could not log in again. */
  mayUnlink: boolean;
}

function Linked({ issuer, mayUnlink }: LinkedProps) {
  const [isOpen, setIsOpen] = useState(false);
  return (
    <>
      linked with {issuer}
      {mayUnlink && (
        <Button small onClick={() => setIsOpen(true)}>
          Unlink
        </Button>
      )}
      {isOpen && <UnlinkDialog issuer={issuer} onClose={() => setIsOpen(false)} />}
    </>
  );
}

function UnlinkDialog({ issuer, onClose }: { issuer: string; onClose: () => void }) {
  const client = useQueryClient();
  const unlink = useMutation({
    mutationFn: () => ask(api.DELETE("/api/v1/auth/oidc/link")),
    onSuccess: () => {
      void client.invalidateQueries({ queryKey: keys.session });
      onClose();
    },
  });
  return (
    <ActionDialog
      title="Unlink your identity?"
      label="Unlink"
      look="danger"
      action={unlink}
      command={null} // only a browser session may do it
      onClose={onClose}
    >
      <p>
        You then log in by password alone. Sessions and tokens of logins through {issuer} end, and
        so do roles that its groups give you.
      </p>
    </ActionDialog>
  );
}

function LinkForm({ name, hasPassword }: { name: string; hasPassword: boolean }) {
  const [password, setPassword] = useState("");
  const link = useMutation({
    meta: SENDS_SECRET,
    mutationFn: () =>
      ask(api.POST("/api/v1/auth/oidc/link", { body: hasPassword ? { password } : {} })),
    onSuccess: ({ url }) => window.location.assign(url),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    link.mutate();
  };
  const isWrong = isUnauthenticated(link.error);
  return (
    <form className="stack" onSubmit={submit}>
      {hasPassword && (
        <PasswordField
          id="link-password"
          label="Present password"
          autoComplete="current-password"
          value={password}
          error={isWrong ? "This is not the present password." : undefined}
          onChange={setPassword}
        />
      )}
      <Button small type="submit" busy={link.isPending}>
        Link with {name}
      </Button>
      {link.isError && !isWrong && <InlineError error={link.error} />}
    </form>
  );
}
