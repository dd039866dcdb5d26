// Reads again what a change of roles makes stale.
import { useQueryClient } from "@tanstack/react-query";
import { keys } from "@/shared/api/queries";

/** Return a function to call after a change of members; the caller's own role may have changed too. */
export function useMembersChanged(): () => void {
  const client = useQueryClient();
  return () => {
    void client.invalidateQueries({ queryKey: keys.projects });
    void client.invalidateQueries({ queryKey: keys.session });
  };
}
