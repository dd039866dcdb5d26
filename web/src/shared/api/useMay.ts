// What the caller of the dashboard may do.
import { useQuery } from "@tanstack/react-query";
import { sessionQuery } from "./queries";
import type { Permission } from "./types";

/** Return whether the session has a permission; false until the session is known. */
export function useMay(permission: Permission): boolean {
  return useQuery(sessionQuery).data?.permissions.includes(permission) ?? false;
}
