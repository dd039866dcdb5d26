// The button that leaves for the issuer's page, and the reason why a login there failed.
import { useQuery } from "@tanstack/react-query";
import { loginFault } from "./loginFaults";
import { waysQuery } from "./waysQuery";

/** Return the name of the issuer; null without single sign-on. */
export function useIssuer(): string | null {
  const ways = useQuery(waysQuery);
  return ways.data?.ways.find(({ kind }) => kind === "issuer")?.name ?? null;
}

/** A link, because the server redirects the whole page to the issuer. */
export function IssuerButton({ name, next }: { name: string; next: string }) {
  const query = new URLSearchParams({ next });
  return (
    <a className="button button-primary issuer-button" href={`/api/v1/auth/oidc/login?${query}`}>
      Log in with {name}
    </a>
  );
}

export function IssuerFault({ code }: { code: string | null }) {
  const fault = loginFault(code);
  return fault && <p role="alert">{fault}</p>;
}
