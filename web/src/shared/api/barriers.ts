// Why a caller may not do something: a missing role, or a token with too few permissions.
import { LEAST_ROLES } from "./permissions";
import { clusterRoleValues, projectRoleValues } from "./schema";
import type { Permission, Project, ProjectRole, Session } from "./types";

/** Whether the caller has a role in the cluster that makes a maintainer of every project. */
export function isAdmin(session: Session | null | undefined): boolean {
  return session?.user?.role === "admin";
}

/** Return the caller's role in a project; null without one, undefined until it is known. */
export function roleIn(
  session: Session | null | undefined,
  projects: readonly Project[] | undefined,
  name: string,
): ProjectRole | null | undefined {
  if (isAdmin(session)) return "maintainer";
  return projects && (projects.find((project) => project.name === name)?.role ?? null);
}

/** Whether a role in a project has all permissions of another one. */
export function includes(role: ProjectRole | null, least: ProjectRole): boolean {
  return role !== null && projectRoleValues.indexOf(role) >= projectRoleValues.indexOf(least);
}

/**
 * Return why the caller lacks a permission; null if the caller has it, or until that is known.
 *
 * `project` is the project of the object, with the caller's role in it. Without one, a permission
 * about projects is enough in any of them.
 */
export function barrierOf(
  session: Session | null | undefined,
  permission: Permission,
  project?: OwnRole,
): string | null {
  if (!session) return null;
  const needed = neededRole(session, permission, project);
  if (needed !== null) return `needs the role ${needed}`;
  // A session by password has all permissions of its user.
  return session.permissions.includes(permission) || session.kind === "password"
    ? null
    : `the token ${session.name} lacks ${permission}`;
}

interface OwnRole {
  name: string;
  /** Null without a role, undefined until it is known. */
  role: ProjectRole | null | undefined;
}

/** Return the role that the caller lacks for a permission; null if a role is not what is missing. */
function neededRole(session: Session, permission: Permission, project?: OwnRole): string | null {
  const least = LEAST_ROLES[permission];
  const isMissing = !session.permissions.includes(permission);
  if (!isOfProject(least)) return isMissing && !hasClusterRole(session, least) ? least : null;
  if (!project) return isMissing && session.kind === "password" ? `${least} in a project` : null;
  const isKnown = project.role !== undefined;
  return isKnown && !includes(project.role ?? null, least) ? `${least} in ${project.name}` : null;
}

function isOfProject(role: string): role is ProjectRole {
  return (projectRoleValues as readonly string[]).includes(role);
}

function hasClusterRole({ user }: Session, least: string): boolean {
  const roles: readonly string[] = clusterRoleValues;
  return user !== null && roles.indexOf(user.role) >= roles.indexOf(least);
}

/** Return a barrier as a sentence about what the caller may not do. */
export function barrierSentence(barrier: string, subject = "This"): string {
  return barrier.startsWith("needs") ? `${subject} ${barrier}.` : `The ${barrier.slice(4)}.`;
}
