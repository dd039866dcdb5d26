// The choices for a fork, as a request and as a command line.
import { ApiError, messageOf, problemText } from "@/shared/api/errors";
import type { components } from "@/shared/api/schema";

export interface ForkChoice {
  name: string;
  /** `section.field=value`, one per line. */
  settings: string;
  parts: "all" | "model";
}

type Body = components["schemas"]["ForkRequest"];

/** Return the initial choice: more steps if the checkpoint is at the end of its job. */
export function firstChoice({ step, steps, setting }: Beginning): ForkChoice {
  const longer = steps === null || step < steps ? null : `training.steps=${2 * step}`;
  const settings = [setting, longer].filter((line) => line !== null).join("\n");
  return { name: "", settings, parts: "all" };
}

interface Beginning {
  step: number;
  steps: number | null;
  setting: string | null;
}

/** Return the body of the request, without unchanged values. */
export function forkRequest({ name, settings, parts }: ForkChoice): Body {
  const changes: Record<string, Record<string, unknown>> = {};
  for (const line of linesOf(settings)) {
    const [path = "", ...rest] = line.split("=");
    const [section = "", field = ""] = path.trim().split(".");
    changes[section] = { ...changes[section], [field]: typedValue(rest.join("=").trim()) };
  }
  return {
    ...(name.trim() && { name: name.trim() }),
    ...(parts === "model" && { parts: ["model"] as Body["parts"] }),
    changes,
  };
}

/** Return the words of `trainyard fork` after the checkpoint. */
export function forkWords({ name, settings, parts }: ForkChoice): string[] {
  return [
    ...linesOf(settings).flatMap((line) => ["--set", line]),
    ...(parts === "model" ? ["--parts", "model"] : []),
    ...(name.trim() ? ["--name", name.trim()] : []),
  ];
}

/** Return the problems, each with its field as typed; or the message of an error without fields. */
export function forkProblems(error: unknown): string[] {
  const errors = error instanceof ApiError ? error.errors : [];
  if (errors.length === 0) return [messageOf(error)];
  return errors.map((problem) => problemText(problem, "changes"));
}

function linesOf(settings: string): string[] {
  return settings
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
}

/** Return the value parsed as JSON, else the text; an empty text removes the field. */
function typedValue(text: string): unknown {
  if (text === "") return null;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
