// Browsers in plain words, from their user agents.

type Rule = readonly [pattern: RegExp, words: string];

/** In this order: most browsers also claim to be Chrome or Safari. */
const BROWSERS: readonly Rule[] = [
  [/\bEdg(?:A|iOS)?\//, "Edge"],
  [/\b(?:OPR|Opera)\//, "Opera"],
  [/\bSamsungBrowser\//, "Samsung Internet"],
  [/\b(?:Firefox|FxiOS)\//, "Firefox"],
  [/\b(?:Chrome|HeadlessChrome|CriOS)\//, "Chrome"],
  [/\bVersion\/[\d.]+ .*\bSafari\//, "Safari"],
];

const SYSTEMS: readonly Rule[] = [
  [/\biPhone\b/, "iPhone"],
  [/\biPad\b/, "iPad"],
  [/\bAndroid\b/, "Android"],
  [/\bWindows\b/, "Windows"],
  [/\bCrOS\b/, "ChromeOS"],
  [/\bMac OS X\b/, "macOS"],
  [/\bLinux\b/, "Linux"],
];

/** `Firefox on Linux`; a program by its name and version, `python-httpx 0.28.1`. */
export function browserWords(userAgent: string | null): string {
  if (!userAgent) return "unknown browser";
  const browser = firstOf(BROWSERS, userAgent);
  const system = firstOf(SYSTEMS, userAgent);
  if (browser) return system ? `${browser} on ${system}` : browser;
  const [name = ""] = userAgent.split(" ");
  const program = name.replace("/", " ");
  if (name === "" || name.startsWith("Mozilla/")) {
    return system ? `a browser on ${system}` : "unknown browser";
  }
  return program;
}

function firstOf(rules: readonly Rule[], text: string): string | undefined {
  return rules.find(([pattern]) => pattern.test(text))?.[1];
}
