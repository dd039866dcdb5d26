// The command line that submits the same spec.
import { isObject, type Json, type JsonObject } from "@/shared/format/document";
import { quoted } from "@/shared/format/shell";

/** With more settings than this, each gets its own line. */
const ONE_LINE = 2;
/** Texts that `--set` would change: it trims values, and an empty value means "unset". */
const NEEDS_QUOTES = /^$|^\s|\s$|^["'[{]|^(true|false|-?\d+(\.\d+)?(e[-+]?\d+)?)$/i;
/** Names that `--set` accepts: without dots and `=`, at which it splits. */
const NAME = /^[^.=\s]+$/;
const VARIABLE = /^[A-Za-z_]\w*$/;

/**
 * Return `trainyard submit --set ...`, or with a file if `--set` cannot express the spec.
 *
 * Variables of `env` outside `shown` come from the shell's environment, so that its history holds no
 * secret.
 */
export function submitCommand(spec: JsonObject, shown: ReadonlySet<string>): string {
  const settings = settingsOf(spec, "", shown);
  // TOML has no null.
  if (settings === null) return `trainyard submit ${hasNull(spec) ? "job.json" : "job.toml"}`;
  // Without settings the command would print its usage: set the default name.
  if (settings.length === 0) settings.push("name=job");
  const options = settings.map((setting) => `--set ${setting}`);
  const separator = options.length > ONE_LINE ? " \\\n  " : " ";
  return ["trainyard submit", ...options].join(separator);
}

/** Return `section.field=value`, quoted, for each value; null if any value has no such form. */
function settingsOf(
  section: JsonObject,
  prefix: string,
  shown: ReadonlySet<string>,
): string[] | null {
  const settings: string[] = [];
  for (const [name, value] of Object.entries(section)) {
    const path = `${prefix}${name}`;
    const isSecret = prefix === "env." && !shown.has(name);
    const found = isObject(value)
      ? settingsOf(value, `${path}.`, shown)
      : setting(path, value, isSecret);
    if (found === null || !(isSecret ? VARIABLE : NAME).test(name)) return null;
    settings.push(...found);
  }
  return settings;
}

function setting(path: string, value: Json, isSecret: boolean): string[] | null {
  if (!isExpressible(value)) return null;
  if (isSecret) return [`"${path}=$${path.slice("env.".length)}"`];
  return [quoted(`${path}=${written(value)}`)];
}

function hasNull(value: Json): boolean {
  if (Array.isArray(value)) return value.some(hasNull);
  return isObject(value) ? Object.values(value).some(hasNull) : value === null;
}

/** Whether `--set` can express a value: it uses TOML, which has no null. */
function isExpressible(value: Json): boolean {
  return Array.isArray(value) ? value.every(isExpressible) : value !== null && !isObject(value);
}

function written(value: Json): string {
  if (typeof value === "string" && !NEEDS_QUOTES.test(value)) return value;
  return JSON.stringify(value);
}
