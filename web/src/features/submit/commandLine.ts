// The command line that submits the same spec.
import { isObject, type Json, type JsonObject } from "@/shared/format/document";
import { quoted } from "@/shared/format/shell";

/** Above so many settings each one gets a line of its own. */
const ONE_LINE = 2;
/** Texts that `--set` would read otherwise: it trims values, and takes an empty one for "unset". */
const NEEDS_QUOTES = /^$|^\s|\s$|^["'[{]/;

/** Return `trainyard submit --set ...`, or with a file where `--set` cannot say it. */
export function submitCommand(spec: JsonObject): string {
  const settings = settingsOf(spec, "");
  if (settings === null) return "trainyard submit job.json";
  // Without any the command shows its usage: the default job has a name to give.
  if (settings.length === 0) settings.push("name=job");
  const options = settings.map((setting) => `--set ${quoted(setting)}`);
  const separator = options.length > ONE_LINE ? " \\\n  " : " ";
  return ["trainyard submit", ...options].join(separator);
}

/** Return `section.field=value` for each value; null when one of them has no such form. */
function settingsOf(section: JsonObject, prefix: string): string[] | null {
  const settings: string[] = [];
  for (const [name, value] of Object.entries(section)) {
    const inner = isObject(value) ? settingsOf(value, `${prefix}${name}.`) : null;
    if (inner) settings.push(...inner);
    else if (isExpressible(value)) settings.push(`${prefix}${name}=${written(value)}`);
    else return null;
  }
  return settings;
}

/** TOML, in which `--set` is written, has no null. */
function isExpressible(value: Json): boolean {
  return Array.isArray(value) ? value.every(isExpressible) : value !== null && !isObject(value);
}

function written(value: Json): string {
  if (typeof value === "string" && !NEEDS_QUOTES.test(value)) return value;
  return JSON.stringify(value);
}
