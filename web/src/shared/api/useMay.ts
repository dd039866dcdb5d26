// Who the caller of the dashboard is, and what the caller may do.
import { useQuery } from "@tanstack/react-query";
import { barrierOf, isAdmin, roleIn } from "./barriers";
import { projectsQuery, sessionQuery } from "./queries";
import type { Permission, Session } from "./types";

/** Name of the user of the admin token. Each of the user's tokens may stand for another person. */
export const BUILT_IN = "admin";

/** Whether the session belongs to a user with a name of the person's own. */
export function isOfPerson({ user }: Session): boolean {
  return user !== null && user.name !== BUILT_IN;
}

/** Return the name of the caller: of the user, or of the token for the built-in user. */
export function callerOf(session: Session): string {
  return isOfPerson(session) && session.user ? session.user.name : session.name;
}

/** Return the session; null without one, undefined until it is known. */
export function useSession(): Session | null | undefined {
  return useQuery(sessionQuery).data;
}

/** Return whether several users share the server; false until the session is known. */
export function useIsShared(): boolean {
  return useSession()?.is_shared ?? false;
}

/** Return whether the session has a permission; false until the session is known. */
export function useMay(permission: Permission): boolean {
  return useSession()?.permissions.includes(permission) ?? false;
}

/** Why the caller lacks a permission, in a project or in the cluster; null if nothing is known against it. */
export type Barriers = (permission: Permission, project?: string | null) => string | null;

/** Return the barriers of the caller; the roles in projects are read once for all components. */
export function useBarriers(): Barriers {
  const { session, projects } = useRoles();
  return (permission, name) =>
    barrierOf(
      session,
      permission,
      name == null ? undefined : { name, role: roleIn(session, projects, name) },
    );
}

/** Return whether `useBarriers` knows the caller's roles: before that it names no role in a project. */
export function useAreRolesKnown(): boolean {
  return useRoles().areKnown;
}

function useRoles() {
  const session = useSession();
  // An admin is a maintainer of every project, so a server of one person needs no request for roles.
  const areRead = !isAdmin(session) && session?.permissions.includes("projects:read") === true;
  const { data: projects, isPending } = useQuery({ ...projectsQuery, enabled: areRead });
  return { session, projects, areKnown: !areRead || !isPending };
}
