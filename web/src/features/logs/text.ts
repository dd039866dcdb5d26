// A line of output as a person reads it: without terminal codes, cut where it is very long. Pure.

/** Characters of one row; the whole line is shown when it is selected. */
export const ROW_CHARACTERS = 1000;

// biome-ignore lint/suspicious/noControlCharactersInRegex: escape sequences begin with one
const ESCAPES = /\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])/g;
// biome-ignore lint/suspicious/noControlCharactersInRegex: a terminal shows none of them
const CONTROLS = /[\x00-\x08\x0b-\x1f\x7f]/g;
/** What the server counts as an error, and what loggers mark as one. */
const ERROR =
  /Traceback \(most recent call last\)|Error:|Exception:|CUDA error|NCCL error|\bKilled\b|\bAborted\b|Segmentation fault|Fatal Python error|\bSIG(?:KILL|SEGV|ABRT|BUS)\b|\bERROR\b/;

/** The line as a terminal leaves it: what a carriage return overwrote is gone, and so are colours. */
export function plainText(line: string): string {
  const visible = line.replace(ESCAPES, "").replace(/\r+$/, "");
  return visible.slice(visible.lastIndexOf("\r") + 1).replace(CONTROLS, "");
}

export function looksLikeError(text: string): boolean {
  return ERROR.test(text);
}

export interface Part {
  text: string;
  isMatch: boolean;
}

/** Cut a text where it holds what is searched for, in any case. */
export function partsOf(text: string, search: string): Part[] {
  if (search === "") return [{ text, isMatch: false }];
  const parts: Part[] = [];
  const [low, wanted] = [text.toLowerCase(), search.toLowerCase()];
  if (low.length !== text.length) return [{ text, isMatch: false }]; // places would be wrong
  let end = 0;
  for (let at = low.indexOf(wanted); at >= 0; at = low.indexOf(wanted, end)) {
    if (at > end) parts.push({ text: text.slice(end, at), isMatch: false });
    end = at + wanted.length;
    parts.push({ text: text.slice(at, end), isMatch: true });
  }
  if (end < text.length) parts.push({ text: text.slice(end), isMatch: false });
  return parts;
}

/** The match after (or before) a line, going round at the end; null without any. */
export function nextMatch(
  matches: readonly number[],
  from: number | null,
  by: 1 | -1,
): number | null {
  if (matches.length === 0) return null;
  const after = matches.find((line) => line > (from ?? -1));
  const before = matches.findLast((line) => line < (from ?? Number.POSITIVE_INFINITY));
  return (by === 1 ? (after ?? matches[0]) : (before ?? matches.at(-1))) ?? null;
}
