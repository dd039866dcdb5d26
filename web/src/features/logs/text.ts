// A readable line of output: without terminal codes, cut if it is very long. Pure.

/** Most characters of one row; selecting it shows the whole line. */
export const ROW_CHARACTERS = 1000;

// biome-ignore lint/suspicious/noControlCharactersInRegex: escape sequences begin with one
const ESCAPES = /\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])/g;
// biome-ignore lint/suspicious/noControlCharactersInRegex: a terminal shows none of them
const CONTROLS = /[\x00-\x08\x0b-\x1f\x7f]/g;
/** Lines that the server counts as errors, and the error marks of loggers. */
const ERROR =
  /Traceback \(most recent call last\)|Error:|Exception:|CUDA error|NCCL error|\bKilled\b|\bAborted\b|Segmentation fault|Fatal Python error|\bSIG(?:KILL|SEGV|ABRT|BUS)\b|\bERROR\b/;

/** Return the line without overwritten text (before a carriage return) and without colours. */
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

/** Split a text at the matches of a search, ignoring case. */
export function partsOf(text: string, search: string): Part[] {
  if (search === "") return [{ text, isMatch: false }];
  const parts: Part[] = [];
  const [low, wanted] = [text.toLowerCase(), search.toLowerCase()];
  if (low.length !== text.length) return [{ text, isMatch: false }]; // offsets would differ
  let end = 0;
  for (let at = low.indexOf(wanted); at >= 0; at = low.indexOf(wanted, end)) {
    if (at > end) parts.push({ text: text.slice(end, at), isMatch: false });
    end = at + wanted.length;
    parts.push({ text: text.slice(at, end), isMatch: true });
  }
  if (end < text.length) parts.push({ text: text.slice(end), isMatch: false });
  return parts;
}

/** Return the next (or previous) match from a line, wrapping around; null without any. */
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
