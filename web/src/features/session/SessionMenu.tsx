// The name of the logged-in person, and the logout.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import { endSession } from "@/shared/api/session";
import { Button } from "@/shared/ui/Button";
import "./session.css";

export function SessionMenu({ name }: { name: string }) {
  const client = useQueryClient();
  const logOut = useMutation({
    mutationFn: () => ask(api.DELETE("/api/v1/auth/session")),
    onSuccess: () => endSession(client),
  });
  return (
    <>
      <span className="session-name ellipsis" title={`Logged in as ${name}`}>
        {name}
      </span>
      <Button look="quiet" small busy={logOut.isPending} onClick={() => logOut.mutate()}>
        Log out
      </Button>
    </>
  );
}
