// The filter of the audit log: its request, its command line, and the words of a row.
import { infiniteQueryOptions } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import { keys, pageOf } from "@/shared/api/queries";
import type { AuditRow } from "@/shared/api/types";
import { command } from "@/shared/format/shell";
import type { AUDIT } from "@/shared/url/pages";
import type { ValuesOf } from "@/shared/url/params";

/** Which rows are shown; an empty field does not restrict. */
export type AuditFilter = ValuesOf<typeof AUDIT>;

export const auditQuery = (filter: AuditFilter) =>
  infiniteQueryOptions({
    queryKey: [...keys.audit, filter] as const,
    queryFn: ({ pageParam, signal }) =>
      ask(
        api.GET("/api/v1/audit", {
          params: { query: { ...wanted(filter), ...pageOf(pageParam) } },
          signal,
        }),
      ),
    initialPageParam: "",
    getNextPageParam: (last) => last.next_page_token,
  });

/** Return the parameters of a request; days are those of the browser's time zone. */
export function wanted({ user, project, object, operation, outcome, from, to }: AuditFilter) {
  return {
    ...(user && { user }),
    ...(project && { project }),
    ...(object && { object }),
    ...(operation && { operation }),
    ...(outcome && { outcome }),
    ...(from && { since: beginOf(from) }),
    ...(to && { until: beginOf(dayAfter(to)) }),
  };
}

/** Return the command that lists the same rows. */
export function auditCommand({ from, to, ...words }: AuditFilter): string {
  const options = (["user", "project", "object", "operation", "outcome"] as const).flatMap(
    (name) => (words[name] ? [`--${name}`, words[name]] : []),
  );
  return command(
    "audit",
    ...options,
    ...(from ? ["--since", from] : []),
    ...(to ? ["--until", dayAfter(to)] : []),
  );
}

/** Return who made the request: the user with the token, else the address. */
export function whoOf({ user, token, address }: AuditRow): string {
  if (!user) return token ?? address ?? "unknown";
  return token && token !== user ? `${user} (${token})` : user;
}

/** Return the changed fields in words: `role: viewer → member`. */
export function changeOf({ before, after }: AuditRow): string {
  const names = new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})]);
  return [...names]
    .map((name) => {
      const [old, next] = [before?.[name], after?.[name]];
      if (old === undefined) return `${name}: ${inWords(next)}`;
      return next === undefined
        ? `${name}: ${inWords(old)}`
        : `${name}: ${inWords(old)} → ${inWords(next)}`;
    })
    .join(", ");
}

function inWords(value: unknown): string {
  if (value === null || value === undefined) return "none";
  if (value === "") return "empty";
  return Array.isArray(value) ? value.join(" ") : String(value);
}

function beginOf(day: string): string {
  return `${new Date(`${day}T00:00:00`).toISOString().slice(0, 19)}Z`;
}

function dayAfter(day: string): string {
  const next = new Date(`${day}T00:00:00Z`);
  next.setUTCDate(next.getUTCDate() + 1);
  return next.toISOString().slice(0, 10);
}
