// The name of the logged-in person, which opens the profile, and the logout.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { NavLink } from "react-router";
import { api, ask } from "@/shared/api/client";
import { endSession } from "@/shared/api/session";
import { useSession } from "@/shared/api/useMay";
import { Button } from "@/shared/ui/Button";
import "./session.css";

export function SessionMenu({ name }: { name: string }) {
  const client = useQueryClient();
  const isOfIssuer = useSession()?.kind === "issuer";
  const logOut = useMutation({
    mutationFn: async () => {
      if (isOfIssuer) return (await ask(api.POST("/api/v1/auth/oidc/logout"))).url;
      await ask(api.DELETE("/api/v1/auth/session"));
      return null;
    },
    onSuccess: (page) => {
      endSession(client);
      if (page !== null) window.location.assign(page);
    },
  });
  return (
    <>
      <NavLink className="session-name" to="/profile" title={`Profile of ${name}`}>
        <svg
          viewBox="0 0 16 16"
          width="16"
          height="16"
          fill="none"
          stroke="currentColor"
          strokeWidth="1.4"
          strokeLinecap="round"
          aria-hidden="true"
        >
          <path d="M8 2a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM2.5 14a5.5 5.5 0 0 1 11 0" />
        </svg>
        <span className="ellipsis">{name}</span>
      </NavLink>
      <Button look="quiet" small busy={logOut.isPending} onClick={() => logOut.mutate()}>
        Log out
      </Button>
    </>
  );
}
