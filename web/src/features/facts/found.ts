// Search in the values of a configuration or summary.
import { factText } from "@/shared/format/spec";

export type Values = Readonly<Record<string, boolean | number | string>>;

/** Return the values with every word of the search in their name or text, in order. */
export function foundIn(values: Values, search: string): [name: string, value: Values[string]][] {
  const words = search.toLowerCase().split(/\s+/);
  return Object.entries(values).filter(([name, value]) => {
    const text = `${name} ${factText(value)}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
}
