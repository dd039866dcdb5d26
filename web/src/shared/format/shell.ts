// Command lines that a person can paste into a shell.

const PLAIN = /^[A-Za-z0-9_@%+=:,./-]+$/;

/** Return a word of a command line, quoted where a POSIX shell needs it. */
export function quoted(word: string): string {
  return PLAIN.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/** `trainyard resume llama-7 --world-size 4` from its words. */
export function command(...words: readonly string[]): string {
  return ["trainyard", ...words].map(quoted).join(" ");
}

/** The same call of the API by curl, for what the command does not offer. */
export function curl(method: string, path: string): string {
  return `curl -X ${method} -H "Authorization: Bearer $TRAINYARD_TOKEN" "$TRAINYARD_URL/api/v1${path}"`;
}

/** The command that starts a provisioner, at the place that reaches the engine. */
export function provisionerCommand(url: string, token: string): string {
  return joinCommand(url, token, "python -m provisioner --config sources.toml");
}

/** The command that starts the worker of a new node; the broker's address is its own. */
export function joinCommand(url: string, token: string, program = "python -m worker"): string {
  const settings = [
    `TRAINYARD_URL=${url}`,
    "TRAINYARD_BROKER_URL=redis://…",
    `TRAINYARD_JOIN_TOKEN=${token}`,
  ];
  return [...settings.map(quoted), program].join(" \\\n  ");
}
