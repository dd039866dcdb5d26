// The linked identity of the caller, or the button that links one.
import { useMutation } from "@tanstack/react-query";
import { IssuerFault, useIssuer } from "@/shared/accounts/issuer";
import { api, ask } from "@/shared/api/client";
import { Button } from "@/shared/ui/Button";
import { Fact } from "@/shared/ui/Field";
import { InlineError } from "@/shared/ui/Notice";
import { PROFILE } from "@/shared/url/pages";
import { usePageParams } from "@/shared/url/params";

export function LinkedIssuer({ issuer }: { issuer: string | null }) {
  const [{ error }] = usePageParams(PROFILE);
  const name = useIssuer();
  const link = useMutation({
    mutationFn: () => ask(api.POST("/api/v1/auth/oidc/link")),
    onSuccess: ({ url }) => window.location.assign(url),
  });
  if (issuer === null && name === null) return null;
  return (
    <Fact name="Single sign-on">
      {issuer !== null ? (
        `linked with ${issuer}`
      ) : (
        <Button small busy={link.isPending} onClick={() => link.mutate()}>
          Link with {name}
        </Button>
      )}
      <IssuerFault code={error} />
      {link.isError && <InlineError error={link.error} />}
    </Fact>
  );
}
