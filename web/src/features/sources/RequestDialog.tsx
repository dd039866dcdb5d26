// Explains, cancels or ends a node request.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import { keys } from "@/shared/api/queries";
import type { NodeRequest } from "@/shared/api/types";
import { plural } from "@/shared/format/numbers";
import { command } from "@/shared/format/shell";
import { ActionDialog } from "@/shared/ui/Dialog";
import type { Verb } from "./state";

export const LABELS: Record<Verb, string> = { explain: "Explain", cancel: "Cancel", end: "End" };
const HELP: Record<Verb, string> = {
  explain: "Reads from the engine why the request waits. Its full answer becomes the reason.",
  cancel:
    "The engine's job is cancelled. Jobs on its nodes continue elsewhere, from the last " +
    "checkpoint.",
  end:
    "The request is forgotten, and attempts on its nodes count as lost. Check the engine first: " +
    "it no longer describes this job.",
};

interface RequestDialogProps {
  request: NodeRequest;
  verb: Verb;
  onClose: () => void;
}

export function RequestDialog({ request, verb, onClose }: RequestDialogProps) {
  const client = useQueryClient();
  const { id, source } = request;
  const send = useMutation({
    mutationFn: (): Promise<unknown> => {
      const path = { params: { path: { name: source, request_id: id } } };
      if (verb === "explain")
        return ask(api.POST("/api/v1/sources/{name}/requests/{request_id}/explain", path));
      if (verb === "cancel")
        return ask(api.POST("/api/v1/sources/{name}/requests/{request_id}/cancel", path));
      return ask(api.POST("/api/v1/sources/{name}/requests/{request_id}/end", path));
    },
    onSuccess: () => {
      void client.invalidateQueries({ queryKey: keys.sources });
      onClose();
    },
  });
  return (
    <ActionDialog
      title={`${LABELS[verb]} the request of ${plural(request.nodes, "node")}?`}
      label={`${LABELS[verb]} request`}
      look={verb === "explain" ? "primary" : "danger"}
      action={send}
      command={command("sources", verb, id)}
      onClose={onClose}
    >
      <p>{HELP[verb]}</p>
      {request.reason && <p className="muted source-reason">{request.reason}</p>}
    </ActionDialog>
  );
}
