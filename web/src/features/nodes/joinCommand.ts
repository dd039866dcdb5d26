import { quoted } from "@/shared/format/shell";

/** Return the command that starts the worker of a new node; the broker's address is its own. */
export function joinCommand(url: string, token: string): string {
  const settings = [
    `TRAINYARD_URL=${url}`,
    "TRAINYARD_BROKER_URL=redis://…",
    `TRAINYARD_JOIN_TOKEN=${token}`,
  ];
  return [...settings.map(quoted), "python -m worker"].join(" \\\n  ");
}
