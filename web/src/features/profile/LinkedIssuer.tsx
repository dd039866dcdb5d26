// The linked identity of the caller, or the button that links one.
import { useMutation } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { IssuerFault, useIssuer } from "@/shared/accounts/issuer";
import { PasswordField } from "@/shared/accounts/PasswordField";
import { api, ask } from "@/shared/api/client";
import { isUnauthenticated } from "@/shared/api/errors";
import { SENDS_SECRET } from "@/shared/api/session";
import { Button } from "@/shared/ui/Button";
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
        `linked with ${issuer}`
      ) : (
        <LinkForm name={name ?? ""} hasPassword={hasPassword} />
      )}
      <IssuerFault code={error} />
    </Fact>
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
