// Reads again what a change of users makes stale.
import { useQueryClient } from "@tanstack/react-query";
import { keys } from "@/shared/api/queries";

/** Return a function to call after a change of users. */
export function useUsersChanged(): () => void {
  const client = useQueryClient();
  return () => {
    void client.invalidateQueries({ queryKey: keys.users });
    // With the first further user, the server becomes one of several people.
    void client.invalidateQueries({ queryKey: keys.session });
  };
}
