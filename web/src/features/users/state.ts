// What a person sees of a user's state, and the command lines of changes.
import type { ClusterRole, User } from "@/shared/api/types";
import { command, curl } from "@/shared/format/shell";
import { age, secondsBetween } from "@/shared/format/time";
import type { Tone } from "@/shared/ui/Badge";

/** The roles, from the least to the most permissions, with what each adds. */
export const ROLES: Record<ClusterRole, string> = {
  user: "Sees nodes and sources, and the projects in which the user has a role.",
  operator: "As a user; also drains nodes, and changes weight and quotas of projects.",
  admin: "As an operator; also manages users, tokens and sources, and maintains every project.",
};

export interface ShownState {
  words: string;
  tone: Tone;
  /** The open link, or why there is none. */
  note: string | null;
}

/** Return the state of a user; `now` is a moment in milliseconds. */
export function stateOf(user: User, now: number): ShownState {
  if (user.has_ended) {
    return { words: "ended", tone: "neutral", note: user.project && `of ${user.project}` };
  }
  if (user.state === "disabled") return { words: "disabled", tone: "neutral", note: null };
  if (user.kind === "service") {
    return { words: "service account", tone: "ok", note: user.project && `of ${user.project}` };
  }
  if (user.is_built_in) return { words: "built in", tone: "neutral", note: "has the admin token" };
  const link = linkWords(user, now);
  if (user.has_password) {
    return { words: "active", tone: "ok", note: link && `link for a new password ${link}` };
  }
  if (user.issuer !== null) {
    return { words: "active", tone: "ok", note: link ? `link ${link}` : "by single sign-on" };
  }
  return link
    ? { words: "invited", tone: "accent", note: `link ${link}` }
    : { words: "no password", tone: "warn", note: "the invitation has ended" };
}

function linkWords({ invited_until }: User, now: number): string | null {
  if (invited_until === null) return null;
  const seconds = secondsBetween(new Date(now).toISOString(), invited_until);
  return seconds <= 0 ? null : `ends in ${age(Math.max(seconds, 5))}`;
}

export interface NewUser {
  name: string;
  email: string;
  role: ClusterRole;
}

/** Return the command that creates the same user. */
export function inviteCommand({ name, email, role }: NewUser): string {
  return command(
    "users",
    "invite",
    name.trim() || "NAME",
    ...(email.trim() ? ["--email", email.trim()] : []),
    ...(role === "user" ? [] : ["--role", role]),
  );
}

export interface UserChanges {
  role?: ClusterRole;
  /** Null removes the address. */
  email?: string | null;
  /** Null removes the account. */
  unix_account?: string | null;
}

/** The typed fields of a user. */
export interface TypedUser {
  role: ClusterRole;
  email: string;
  account: string;
}

/** Return the fields that differ from those of the user. */
export function changesOf(user: User, { role, email, account }: TypedUser): UserChanges {
  const address = email.trim() || null;
  const unixAccount = account.trim() || null;
  return {
    ...(role === user.role ? {} : { role }),
    ...(address === user.email ? {} : { email: address }),
    ...(unixAccount === user.unix_account ? {} : { unix_account: unixAccount }),
  };
}

/** Return the command of a change; an e-mail address, or two fields, change only by the API. */
export function changeCommand(user: User, changes: UserChanges): string {
  const { email, unix_account } = changes;
  if (email !== undefined || Object.keys(changes).length > 1) {
    return curl("PATCH", `/users/${user.id}`, changes);
  }
  if (unix_account !== undefined || user.kind === "service") {
    return command("users", "change", user.name, "--unix-account", unix_account ?? "");
  }
  return command("users", "role", user.name, changes.role ?? user.role);
}
