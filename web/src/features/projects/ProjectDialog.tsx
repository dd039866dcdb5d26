// Creates a project, or changes one.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, ask } from "@/shared/api/client";
import { ApiError } from "@/shared/api/errors";
import { keys } from "@/shared/api/queries";
import type { Project } from "@/shared/api/types";
import { ActionDialog } from "@/shared/ui/Dialog";
import { Field } from "@/shared/ui/Field";
import { bodyOf, NEW, type Settings, sameCommand, settingsOf } from "./settings";

interface ProjectDialogProps {
  /** The project to change; null for a new one. */
  project: Project | null;
  onClose: () => void;
}

const FIELDS: readonly (readonly [keyof Settings, string, string])[] = [
  ["description", "Description", "What the project is for."],
  ["weight", "Weight", "Its share of the slots relative to the other projects with jobs."],
  ["max_slots", "Most slots", "Held at the same time; empty for no limit."],
  [
    "slot_hours_per_month",
    "Slot-hours a month",
    "Used in a calendar month (UTC), after which its jobs save and wait; empty for no limit.",
  ],
];

export function ProjectDialog({ project, onClose }: ProjectDialogProps) {
  const before = project && settingsOf(project);
  const [settings, setSettings] = useState(before ?? NEW);
  const client = useQueryClient();
  const send = useMutation({
    mutationFn: () => {
      const body = bodyOf(settings);
      return project
        ? ask(
            api.PATCH("/api/v1/projects/{name}", {
              params: { path: { name: project.name } },
              body,
            }),
          )
        : ask(api.POST("/api/v1/projects", { body: { name: settings.name, ...body } }));
    },
    onSuccess: () => {
      void client.invalidateQueries({ queryKey: keys.projects });
      onClose();
    },
  });
  const problems = send.error instanceof ApiError ? send.error.errors : [];
  const errorAt = (field: keyof Settings) =>
    problems.find((problem) => problem.pointer === `/${field}`)?.detail;
  return (
    <ActionDialog
      title={project ? `Project ${project.name}` : "New project"}
      label={project ? "Save" : "Create"}
      action={send}
      disabled={settings.name === ""}
      command={sameCommand(settings, before)}
      onClose={onClose}
    >
      {!project && (
        <Text
          field="name"
          label="Name"
          help="Specs name it; it never changes."
          value={settings.name}
          error={errorAt("name")}
          onChange={(name) => setSettings({ ...settings, name })}
        />
      )}
      {FIELDS.map(([field, label, help]) => (
        <Text
          key={field}
          field={field}
          label={label}
          help={help}
          value={settings[field]}
          error={errorAt(field)}
          onChange={(text) => setSettings({ ...settings, [field]: text })}
        />
      ))}
    </ActionDialog>
  );
}

interface TextProps {
  field: keyof Settings;
  label: string;
  help: string;
  value: string;
  error: string | undefined;
  onChange: (text: string) => void;
}

function Text({ field, label, help, value, error, onChange }: TextProps) {
  const id = `project-${field}`;
  const isNumber = field !== "name" && field !== "description";
  return (
    <Field htmlFor={id} label={label} help={help} error={error}>
      <input
        id={id}
        className="input"
        inputMode={isNumber ? "decimal" : "text"}
        autoComplete="off"
        value={value}
        aria-invalid={error !== undefined}
        aria-describedby={`${id}-said`}
        onChange={(event) => onChange(event.target.value)}
      />
    </Field>
  );
}
