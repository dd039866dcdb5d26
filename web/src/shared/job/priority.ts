// Names of priorities; the server reads both names and numbers.

export const PRIORITY_CLASSES: Readonly<Record<string, number>> = { low: -50, normal: 0, high: 50 };

/** `high`, or the number of a priority without a name. */
export function priorityWords(priority: number): string {
  const named = Object.entries(PRIORITY_CLASSES).find(([, number]) => number === priority);
  return named?.[0] ?? String(priority);
}
