// Checks, pauses or unpauses a source, or requests nodes from it.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useId, useState } from "react";
import { api, ask } from "@/shared/api/client";
import { keys } from "@/shared/api/queries";
import type { Source } from "@/shared/api/types";
import { command } from "@/shared/format/shell";
import { ActionDialog } from "@/shared/ui/Dialog";
import { Field } from "@/shared/ui/Field";

export type Action = "check" | "pause" | "unpause" | "request" | "delete";

const LABELS: Record<Action, string> = {
  check: "Check",
  pause: "Pause",
  unpause: "Unpause",
  request: "Request",
  delete: "Delete",
};
const HELP: Record<Action, string> = {
  check: "Requests one node, which examines its machine and ends. Its findings appear below.",
  pause: "The source gets no new requests. Its allocated nodes stay.",
  unpause: "Queued jobs can cause requests again immediately.",
  request: "The nodes stay until the allocation ends, or until they have been idle for a while.",
  delete:
    "Only a source without open requests is deleted. Its token ends: a provisioner that still " +
    "serves it needs a new join token.",
};

interface SourceDialogProps {
  source: Source;
  action: Action;
  onClose: () => void;
}

export function SourceDialog({ source, action, onClose }: SourceDialogProps) {
  const id = useId();
  const client = useQueryClient();
  const [text, setText] = useState(action === "request" ? "1" : "");
  const { name } = source;
  const send = useMutation({
    mutationFn: async (): Promise<unknown> => {
      const path = { params: { path: { name } } };
      if (action === "check") return ask(api.POST("/api/v1/sources/{name}/check", path));
      if (action === "delete") return ask(api.DELETE("/api/v1/sources/{name}", path));
      if (action === "unpause") return ask(api.POST("/api/v1/sources/{name}/unpause", path));
      if (action === "pause") {
        const body = text.trim() ? { reason: text.trim() } : {};
        return ask(api.POST("/api/v1/sources/{name}/pause", { ...path, body }));
      }
      const body = { nodes: Number(text) };
      return ask(api.POST("/api/v1/sources/{name}/requests", { ...path, body }));
    },
    onSuccess: () => {
      void client.invalidateQueries({ queryKey: keys.sources });
      onClose();
    },
  });
  const most = source.limits.nodes_per_request;
  const isWrong = action === "request" && !(Number(text) >= 1 && Number(text) <= most);
  return (
    <ActionDialog
      title={`${LABELS[action]}${action === "request" ? " nodes of" : ""} ${name}?`}
      label={LABELS[action]}
      look={action === "delete" ? "danger" : "primary"}
      action={send}
      disabled={isWrong}
      command={sameCommand(action, name, text.trim())}
      onClose={onClose}
    >
      <p>{HELP[action]}</p>
      {action === "pause" && (
        <Field htmlFor={id} label="Reason" help="Shown with the source." error={undefined}>
          <input
            id={id}
            className="input"
            value={text}
            onChange={(event) => setText(event.target.value)}
          />
        </Field>
      )}
      {action === "request" && (
        <Field htmlFor={id} label="Nodes" help={`1 to ${most}`} error={undefined}>
          <input
            id={id}
            className="input"
            inputMode="numeric"
            value={text}
            onChange={(event) => setText(event.target.value)}
          />
        </Field>
      )}
    </ActionDialog>
  );
}

function sameCommand(action: Action, name: string, text: string): string {
  if (action === "request") return command("sources", "request", name, "--nodes", text || "1");
  const reason = action === "pause" && text ? ["--reason", text] : [];
  return command("sources", action, name, ...reason);
}
