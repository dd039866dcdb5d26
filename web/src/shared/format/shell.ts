// Command lines that a person can paste into a shell.

const PLAIN = /^[A-Za-z0-9_@%+=:,./-]+$/;

/** Return a word of a command line, quoted where a POSIX shell needs it. */
export function quoted(word: string): string {
  return PLAIN.test(word) ? word : inQuotes(word);
}

function inQuotes(word: string): string {
  return `'${word.replaceAll("'", `'\\''`)}'`;
}

/** Separators of a list that a person types. */
export const COMMAS = /[\s,]/;
/** Separators of the words of a command. */
export const SPACES = /\s/;
/** One piece of a word: in quotes, after a backslash, or plain. */
const PIECE = /'[^']*'|"(?:\\[\s\S]|[^"\\])*"|\\[\s\S]|[^'"\\]/y;

/** Return the words of a line, or the unclosed quote; variables are not expanded. */
export function splitWords(line: string, between = SPACES): string[] | { open: string } {
  const words: string[] = [];
  let word: string | null = null;
  for (let at = 0; at < line.length; at = PIECE.lastIndex) {
    PIECE.lastIndex = at;
    const piece = PIECE.exec(line)?.[0];
    if (piece === undefined) return { open: line.charAt(at) };
    if (!between.test(piece) || piece.length > 1) word = (word ?? "") + unquoted(piece);
    else if (word !== null) {
      words.push(word);
      word = null;
    }
  }
  return word === null ? words : [...words, word];
}

/** Return a line that `splitWords` reads as these words. */
export function joinWords(words: readonly string[], between = SPACES): string {
  const line = words.map((word) =>
    word === "" || /['"\\]/.test(word) || between.test(word) ? inQuotes(word) : word,
  );
  return line.join(between === SPACES ? " " : ", ");
}

function unquoted(piece: string): string {
  if (piece.startsWith("'")) return piece.slice(1, -1);
  if (piece.startsWith("\\")) return piece.slice(1);
  return piece.startsWith('"') ? piece.slice(1, -1).replaceAll(/\\(["\\$`])/g, "$1") : piece;
}

/** `trainyard resume llama-7 --world-size 4` from its words. */
export function command(...words: readonly string[]): string {
  return ["trainyard", ...words].map(quoted).join(" ");
}

/** The API call as a curl command, for actions without a subcommand of `trainyard`. */
export function curl(method: string, path: string, body?: object): string {
  const head = `curl -X ${method} -H "Authorization: Bearer $TRAINYARD_TOKEN"`;
  const json = body && ` --json ${inQuotes(JSON.stringify(body))}`;
  return `${head}${json ?? ""} "$TRAINYARD_URL/api/v1${path}"`;
}

/** The command that starts a provisioner, on a machine that reaches the engine. */
export function provisionerCommand(url: string, token: string): string {
  return joinCommand(url, token, "python -m provisioner --config sources.toml");
}

/** The command that starts the worker of a new node, with a placeholder for the broker's address. */
export function joinCommand(url: string, token: string, program = "python -m worker"): string {
  const settings = [
    `TRAINYARD_URL=${url}`,
    "TRAINYARD_BROKER_URL=redis://…",
    `TRAINYARD_JOIN_TOKEN=${token}`,
  ];
  return [...settings.map(quoted), program].join(" \\\n  ");
}
