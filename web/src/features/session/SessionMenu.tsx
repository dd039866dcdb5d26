// Who is logged in, and the way out.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import { keys } from "@/shared/api/queries";
import { Button } from "@/shared/ui/Button";
import "./session.css";

export function SessionMenu({ name }: { name: string }) {
  const client = useQueryClient();
  const logOut = useMutation({
    mutationFn: () => ask(api.DELETE("/api/v1/auth/session")),
    onSuccess: () => {
      client.setQueryData(keys.session, null);
      // Nothing that was read for one person is shown to the next.
      client.removeQueries({ predicate: ({ queryKey: [first] }) => first !== keys.session[0] });
    },
  });
  return (
    <>
      <span className="session-name" title={`Logged in as ${name}`}>
        {name}
      </span>
      <Button look="quiet" small busy={logOut.isPending} onClick={() => logOut.mutate()}>
        Log out
      </Button>
    </>
  );
}
