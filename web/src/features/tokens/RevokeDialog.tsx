// Confirms before a token is revoked, and shows what ends with it.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import { keys } from "@/shared/api/queries";
import type { Token } from "@/shared/api/types";
import { curl } from "@/shared/format/shell";
import { ActionDialog } from "@/shared/ui/Dialog";

const ENDS: Record<Token["kind"], string> = {
  admin: "",
  api: "Programs that use it, and browsers that logged in with it, are refused from now on.",
  join: "No further machine can join with it; one that has joined stays.",
  login: "Its link logs in no further browser.",
  node: "The node’s worker is refused from now on. Its jobs keep training, but cannot report.",
  source:
    "The source’s provisioner is refused from now on. Its nodes keep running; nothing more is asked of it.",
};

export function RevokeDialog({ token, onClose }: { token: Token; onClose: () => void }) {
  const client = useQueryClient();
  const revoke = useMutation({
    mutationFn: () =>
      ask(api.DELETE("/api/v1/tokens/{token_id}", { params: { path: { token_id: token.id } } })),
    onSuccess: () => {
      void client.invalidateQueries({ queryKey: keys.tokens });
      onClose();
    },
  });
  return (
    <ActionDialog
      title={`Revoke ${token.name}?`}
      label="Revoke"
      look="danger"
      action={revoke}
      command={curl("DELETE", `/tokens/${token.id}`)}
      onClose={onClose}
    >
      <p>{ENDS[token.kind]}</p>
    </ActionDialog>
  );
}
