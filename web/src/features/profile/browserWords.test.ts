import { expect, it } from "vitest";
import { browserWords } from "./browserWords";

const KIT = "AppleWebKit/537.36 (KHTML, like Gecko)";

it.each([
  [`Mozilla/5.0 (X11; Linux x86_64) ${KIT} Chrome/140.0.0.0 Safari/537.36`, "Chrome on Linux"],
  [
    `Mozilla/5.0 (Windows NT 10.0; Win64; x64) ${KIT} Chrome/140.0.0.0 Safari/537.36 Edg/140.0.0.0`,
    "Edge on Windows",
  ],
  ["Mozilla/5.0 (X11; Linux x86_64; rv:143.0) Gecko/20100101 Firefox/143.0", "Firefox on Linux"],
  [
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.5 Safari/605.1.15",
    "Safari on macOS",
  ],
  [
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.5 Mobile/15E148 Safari/604.1",
    "Safari on iPhone",
  ],
  [
    `Mozilla/5.0 (Linux; Android 15) ${KIT} Chrome/140.0.0.0 Mobile Safari/537.36`,
    "Chrome on Android",
  ],
  ["Mozilla/5.0 (Windows NT 10.0) Unheard/1.0", "a browser on Windows"],
  ["Mozilla/5.0", "unknown browser"],
  ["python-httpx/0.28.1", "python-httpx 0.28.1"],
  ["", "unknown browser"],
  [null, "unknown browser"],
])("%s is %s", (userAgent, words) => expect(browserWords(userAgent)).toBe(words));
