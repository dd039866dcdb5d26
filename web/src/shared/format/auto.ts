// What the fields of a spec that are `auto` stand for.

/** Return the fields with their values, as `--set` takes them. */
export function autoWords(values: Record<string, boolean | number | string>): string {
  return Object.entries(values)
    .map(([field, value]) => `${field}=${value}`)
    .join(", ");
}
