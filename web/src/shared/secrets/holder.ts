// The secrets of a project, or the caller's own: requests and command lines.
import { queryOptions } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import { allPages, keys } from "@/shared/api/queries";
import type { Secret } from "@/shared/api/types";
import { command } from "@/shared/format/shell";

/** Name of a project; null for the caller. */
export type Holder = string | null;

/** Return the key of a holder's secrets in the cache; events of projects reach those of projects. */
export function keyOf(holder: Holder): readonly string[] {
  return holder === null ? keys.ownSecrets : [...keys.projects, holder, "secrets"];
}

/** The secrets of a holder by name, without values. */
export const secretsQuery = (holder: Holder) =>
  queryOptions({
    queryKey: keyOf(holder),
    queryFn: ({ signal }) =>
      allPages((query) =>
        holder === null
          ? ask(api.GET("/api/v1/users/me/secrets", { params: { query }, signal }))
          : ask(
              api.GET("/api/v1/projects/{name}/secrets", {
                params: { path: { name: holder }, query },
                signal,
              }),
            ),
      ),
  });

/** Store a new version of a secret. */
export function putSecret(holder: Holder, secret: string, value: string): Promise<Secret> {
  const body = { value };
  return holder === null
    ? ask(api.PUT("/api/v1/users/me/secrets/{secret}", { params: { path: { secret } }, body }))
    : ask(
        api.PUT("/api/v1/projects/{name}/secrets/{secret}", {
          params: { path: { name: holder, secret } },
          body,
        }),
      );
}

export function deleteSecret(holder: Holder, secret: string): Promise<unknown> {
  return holder === null
    ? ask(api.DELETE("/api/v1/users/me/secrets/{secret}", { params: { path: { secret } } }))
    : ask(
        api.DELETE("/api/v1/projects/{name}/secrets/{secret}", {
          params: { path: { name: holder, secret } },
        }),
      );
}

/** Return a value as typed, without the line break that ends a pasted file, as `secrets set` does. */
export function valueIn(text: string): string {
  return text.replace(/\r?\n$/, "");
}

export function listCommand(holder: Holder): string {
  return command("secrets", ...ofHolder(holder));
}

/** Return the command that stores a secret from a file: no command line contains a value. */
export function setSecretCommand(holder: Holder, secret: string): string {
  return `${command("secrets", "set", secret || "NAME", ...ofHolder(holder))} < FILE`;
}

export function removeSecretCommand(holder: Holder, secret: string): string {
  return command("secrets", "remove", secret, ...ofHolder(holder));
}

/** Return the line of a spec that gives a job the secret. */
export function referenceTo(holder: Holder, secret: string): string {
  const of = holder === null ? ', of = "owner"' : "";
  return `VARIABLE = {secret = ${JSON.stringify(secret)}${of}}`;
}

function ofHolder(holder: Holder): string[] {
  return holder === null ? [] : ["--project", holder];
}
