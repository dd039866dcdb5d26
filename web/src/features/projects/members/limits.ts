// Limits of a user in a project: as typed, as words, in requests and on command lines.
import type { Member, Project } from "@/shared/api/types";
import { plural } from "@/shared/format/numbers";
import { quotaIn, quotaText, quotaWord } from "@/shared/format/quota";
import { command } from "@/shared/format/shell";

/** Limits of slots and of running jobs; null for none. */
export type Limits = Pick<Member, "max_slots" | "max_running">;
/** Limits as text of a form. */
export type TypedLimits = Record<keyof Limits, string>;

export const LIMITS = ["max_slots", "max_running"] as const;

/** The noun of each limit in a sentence. */
const NOUNS = { max_slots: "slot", max_running: "running job" } as const;
const OPTIONS = { max_slots: "--max-slots", max_running: "--max-running" } as const;

export function limitsOf(project: Project): Limits {
  return { max_slots: project.member_max_slots, max_running: project.member_max_running };
}

export function typedOf(limits: Limits): TypedLimits {
  return {
    max_slots: quotaText(limits.max_slots),
    max_running: quotaText(limits.max_running),
  };
}

/** Return the limits that differ from `before`, for a request. */
export function changedLimits(typed: TypedLimits, before: Limits): Partial<Limits> {
  const changed = LIMITS.filter((each) => quotaIn(typed[each]) !== before[each]);
  return Object.fromEntries(changed.map((each) => [each, quotaIn(typed[each])]));
}

/** Return the options of a command line for the limits that differ from `before`. */
export function limitOptions(typed: TypedLimits, before: Limits): string[] {
  const changed = changedLimits(typed, before);
  return LIMITS.filter((each) => each in changed).flatMap((each) => [
    OPTIONS[each],
    quotaWord(typed[each]),
  ]);
}

export function limitsCommand(project: string, typed: TypedLimits, before: Limits): string {
  return command("members", "limits", ...limitOptions(typed, before), "--project", project);
}

/** Return limits in words: `8 slots, 4 running jobs`; null without limits. */
export function limitWords(limits: Limits): string | null {
  const words = LIMITS.flatMap((each) => {
    const limit = limits[each];
    return limit === null ? [] : [plural(limit, NOUNS[each])];
  });
  return words.length === 0 ? null : words.join(", ");
}

/** Return what a member uses: `6 of 8 slots, 2 jobs`. */
export function useWords(member: Member): string {
  const { effective_max_slots: slots, effective_max_running: running } = member;
  const part = (used: number, limit: number | null, noun: string) =>
    limit === null ? plural(used, noun) : `${used} of ${plural(limit, noun)}`;
  return `${part(member.held_slots, slots, "slot")}, ${part(member.running_jobs, running, "job")}`;
}

/** Return whether a limit of the member replaces that of each user. */
export function hasOwnLimit({ max_slots, max_running }: Limits): boolean {
  return max_slots !== null || max_running !== null;
}
