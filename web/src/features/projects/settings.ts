// The settings of a project: typed text, converted to a request and to a command line.
import type { Project } from "@/shared/api/types";
import { quotaIn, quotaText, quotaWord, typedNumber } from "@/shared/format/quota";
import { command } from "@/shared/format/shell";

/** Values of the form: numbers as typed. */
export interface Settings {
  name: string;
  description: string;
  weight: string;
  max_slots: string;
  slot_hours_per_month: string;
}

export const NEW: Settings = {
  name: "",
  description: "",
  weight: "1",
  max_slots: "",
  slot_hours_per_month: "",
};

export function settingsOf(project: Project): Settings {
  return {
    name: project.name,
    description: project.description,
    weight: String(project.weight),
    max_slots: quotaText(project.max_slots),
    slot_hours_per_month: quotaText(project.slot_hours_per_month),
  };
}

/** Return the body of a request; an empty quota means no limit. */
export function bodyOf(settings: Settings) {
  return {
    description: settings.description,
    weight: typedNumber(settings.weight),
    max_slots: quotaIn(settings.max_slots),
    slot_hours_per_month: quotaIn(settings.slot_hours_per_month),
  };
}

/** Return the equivalent command; a change names only different values. */
export function sameCommand(settings: Settings, before: Settings | null): string {
  const from = before ?? NEW;
  return command(
    "projects",
    before ? "set" : "create",
    settings.name || "NAME",
    ...(settings.description !== from.description ? ["--description", settings.description] : []),
    ...(settings.weight !== from.weight ? ["--weight", settings.weight] : []),
    ...(settings.max_slots !== from.max_slots
      ? ["--max-slots", quotaWord(settings.max_slots)]
      : []),
    ...(settings.slot_hours_per_month !== from.slot_hours_per_month
      ? ["--slot-hours", quotaWord(settings.slot_hours_per_month)]
      : []),
  );
}
