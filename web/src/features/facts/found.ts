// Values of a configuration or of a summary by a text that is searched.
import { factText } from "@/shared/format/spec";

export type Values = Readonly<Record<string, boolean | number | string>>;

/** Return the values whose name or text has each of some words, in their order. */
export function foundIn(values: Values, search: string): [name: string, value: Values[string]][] {
  const words = search.toLowerCase().split(/\s+/);
  return Object.entries(values).filter(([name, value]) => {
    const text = `${name} ${factText(value)}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
}
