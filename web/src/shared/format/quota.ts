// Numbers as typed in a form, and quotas: an empty text means no limit.

/** Return a typed number; other text as it is, so that the server names it in its refusal. */
export function typedNumber(text: string): number {
  const value = Number(text);
  // JSON has neither NaN nor infinity: both would be sent as null, which removes a quota.
  return Number.isFinite(value) ? value : (text.trim() as unknown as number);
}

/** Return the quota in a request; null for no limit. */
export function quotaIn(text: string): number | null {
  return text.trim() === "" ? null : typedNumber(text);
}

/** Return a quota as text of a form. */
export function quotaText(quota: number | null): string {
  return quota === null ? "" : String(quota);
}

/** Return a quota as text of a command line. */
export function quotaWord(text: string): string {
  return text.trim() || "none";
}
