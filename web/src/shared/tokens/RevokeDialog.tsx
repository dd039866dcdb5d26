// Confirms before a token is revoked, and shows the consequences.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import { keys } from "@/shared/api/queries";
import type { Token } from "@/shared/api/types";
import { curl } from "@/shared/format/shell";
import { ActionDialog } from "@/shared/ui/Dialog";
import { type Account, deleteAccountToken, revokeCommand } from "./account";

const ENDS: Record<Token["kind"], string> = {
  admin: "",
  api: "Programs that use it, and browsers that logged in with it, are refused from now on.",
  join: "No other machine can join with it; a joined machine stays.",
  login: "Its link can no longer log in a browser.",
  node: "The node’s worker is refused from now on. Its jobs keep training, but cannot report.",
  source:
    "The source’s provisioner is refused from now on. Its nodes keep running; it gets no new requests.",
};

interface RevokeDialogProps {
  token: Token;
  /** The service account of the token. */
  account: Account | null;
  onClose: () => void;
}

export function RevokeDialog({ token, account, onClose }: RevokeDialogProps) {
  const client = useQueryClient();
  const revoke = useMutation({
    mutationFn: (): Promise<unknown> =>
      account
        ? deleteAccountToken(account, token.id)
        : ask(
            api.DELETE("/api/v1/tokens/{token_id}", { params: { path: { token_id: token.id } } }),
          ),
    onSuccess: () => {
      void client.invalidateQueries({ queryKey: account ? keys.projects : keys.tokens });
      onClose();
    },
  });
  return (
    <ActionDialog
      title={`Revoke ${token.name}?`}
      label="Revoke"
      look="danger"
      action={revoke}
      command={account ? revokeCommand(account, token.name) : curl("DELETE", `/tokens/${token.id}`)}
      onClose={onClose}
    >
      <p>{ENDS[token.kind]}</p>
    </ActionDialog>
  );
}
