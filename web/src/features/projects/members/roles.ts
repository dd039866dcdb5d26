// Roles in a project: what each allows, where the caller's comes from, and the commands of changes.
import { isAdmin as isAdminSession } from "@/shared/api/barriers";
import type { Member, Project, ProjectRole, Session } from "@/shared/api/types";
import { command } from "@/shared/format/shell";

/** The roles, from the least to the most permissions, with what each adds. */
export const PROJECT_ROLES: Record<ProjectRole, string> = {
  viewer: "Reads jobs with their output, the queue, and the members.",
  member: "As a viewer; also submits, stops, resumes and forks jobs, and runs own code.",
  maintainer: "As a member; also deletes and transfers jobs, and changes members.",
};

/** The roles that a service account may have. */
export const ACCOUNT_ROLES = ["viewer", "member"] as const satisfies readonly ProjectRole[];
export type AccountRole = (typeof ACCOUNT_ROLES)[number];

/** Word for no role, as on the command line. */
export const NONE = "none";

/** Return the caller's role in a project, with where it comes from. */
export function ownRoleWords(
  { role, everyone }: Pick<Project, "role" | "everyone">,
  members: readonly Member[],
  session: Session | null | undefined,
): string {
  if (role === null) return "You have no role";
  const own = members.find(({ user }) => user === session?.user?.name)?.role;
  const why = isAdminSession(session)
    ? "as an admin"
    : own === role
      ? "by membership"
      : everyone === role
        ? "as everyone"
        : "by a group";
  return `Your role: ${role}, ${why}`;
}

/** Return what another person has after the end of the membership. */
export function lossOf(user: string, everyone: ProjectRole | null): string {
  return everyone === null
    ? `${user} no longer sees the project and its jobs, except as an admin or by a group.`
    : `${user} keeps the role ${everyone}, which everyone has.`;
}

/** Return what the caller has after the end of the own membership. */
export function ownLoss(everyone: ProjectRole | null, isAdmin: boolean): string {
  if (isAdmin) return "As an admin, you stay a maintainer.";
  return everyone === null
    ? "You no longer see the project and its jobs."
    : `You keep the role ${everyone}, which everyone has.`;
}

/** Return the command of a role; `options` are those of limits. */
export function setCommand(
  project: string,
  user: string,
  role: ProjectRole,
  ...options: string[]
): string {
  return command("members", "add", user || "NAME", role, ...options, "--project", project);
}

export function removeCommand(project: string, user: string): string {
  return command("members", "remove", user, "--project", project);
}

export function everyoneCommand(project: string, role: ProjectRole | null): string {
  return command("members", "everyone", role ?? NONE, "--project", project);
}

export function groupCommand(project: string, group: string, role: ProjectRole | null): string {
  return command("groups", "set", group || "GROUP", role ?? NONE, "--project", project);
}

/** Return the command that creates an account; `member` is its default role. */
export function accountCommand(project: string, name: string, role: AccountRole): string {
  return command(
    "service-accounts",
    "create",
    name || "NAME",
    "--project",
    project,
    ...(role === "member" ? [] : ["--role", role]),
  );
}

export function endAccountCommand(project: string, name: string): string {
  return command("service-accounts", "remove", name, "--project", project);
}
