// Confirms before a token is revoked, and shows what ends with it.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import { keys } from "@/shared/api/queries";
import type { Token } from "@/shared/api/types";
import { curl } from "@/shared/format/shell";
import { Button } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Dialog } from "@/shared/ui/Dialog";
import { InlineError } from "@/shared/ui/Notice";

const ENDS: Record<Token["kind"], string> = {
  admin: "",
  api: "Programs that use it, and browsers that logged in with it, are refused from now on.",
  join: "No further machine can join with it; one that has joined stays.",
  login: "Its link logs in no further browser.",
  node: "The node’s worker is refused from now on. Its jobs keep training, but cannot report.",
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
    <Dialog
      title={`Revoke ${token.name}?`}
      onClose={onClose}
      footer={
        <>
          <Button onClick={onClose}>Keep it</Button>
          <Button look="danger" busy={revoke.isPending} onClick={() => revoke.mutate()}>
            Revoke
          </Button>
        </>
      }
    >
      <p>{ENDS[token.kind]}</p>
      <CommandLine
        command={curl("DELETE", `/tokens/${token.id}`)}
        label="The same by command line"
      />
      {revoke.isError && <InlineError error={revoke.error} />}
    </Dialog>
  );
}
