// The tokens of a service account: its permissions, the requests, and the command lines.
import { queryOptions } from "@tanstack/react-query";
import { includes } from "@/shared/api/barriers";
import { api, ask } from "@/shared/api/client";
import { LEAST_ROLES } from "@/shared/api/permissions";
import { allPages, keys } from "@/shared/api/queries";
import type { components } from "@/shared/api/schema";
import { projectRoleValues } from "@/shared/api/schema";
import type { Permission, ProjectRole, Token } from "@/shared/api/types";
import { command } from "@/shared/format/shell";

export interface Account {
  project: string;
  /** With its project, such as `nightly@vision`. */
  name: string;
  role: ProjectRole;
}

const DAY_SECONDS = 86_400;

/** Return the permissions of an account, as far as the caller has them. */
export function heldBy(role: ProjectRole, ofCaller: readonly Permission[]): Permission[] {
  return ofCaller.filter((permission) => {
    const least = LEAST_ROLES[permission];
    const ofProject = projectRoleValues.find((each) => each === least);
    return ofProject ? includes(role, ofProject) : least === "user";
  });
}

function at({ project, name }: Account) {
  return { path: { name: project, user: name } };
}

/** The tokens of an account, the newest first. */
export const accountTokensQuery = (account: Account) =>
  queryOptions({
    queryKey: [...keys.projects, account.project, "tokens", account.name] as const,
    queryFn: ({ signal }) =>
      allPages((query) =>
        ask(
          api.GET("/api/v1/projects/{name}/service-accounts/{user}/tokens", {
            params: { ...at(account), query },
            signal,
          }),
        ),
      ),
  });

export function deleteAccountToken(account: Account, token: string): Promise<unknown> {
  const { path } = at(account);
  return ask(
    api.DELETE("/api/v1/projects/{name}/service-accounts/{user}/tokens/{token_id}", {
      params: { path: { ...path, token_id: token } },
    }),
  );
}

export function revokeCommand({ project, name }: Account, token: string): string {
  return command("service-accounts", "revoke", name, token, "--project", project);
}

export function postAccountToken(
  account: Account,
  body: components["schemas"]["ServiceTokenRequest"],
): Promise<Token> {
  return ask(
    api.POST("/api/v1/projects/{name}/service-accounts/{user}/tokens", {
      params: at(account),
      body,
    }),
  );
}

/** Return the command that creates the same token. */
export function tokenCommand(
  { project, name }: Account,
  token: string,
  scopes: readonly Permission[] | null,
  seconds: number,
): string {
  return command(
    "service-accounts",
    "token",
    name,
    token.trim() || "TOKEN",
    "--project",
    project,
    ...(scopes ?? []).flatMap((scope) => ["--scope", scope]),
    "--days",
    String(seconds / DAY_SECONDS),
  );
}
