// How a machine or a source joins: a button, a one-time token, and the command that uses it.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, type ReactNode, useId, useState } from "react";
import { api, ask } from "@/shared/api/client";
import { keys } from "@/shared/api/queries";
import { useBarriers } from "@/shared/api/useMay";
import { Button } from "@/shared/ui/Button";
import { Dialog } from "@/shared/ui/Dialog";
import { InlineError } from "@/shared/ui/Notice";
import { SecretDialog } from "./SecretDialog";

interface JoinButtonProps {
  label: string;
  /** The dialog that it opens. */
  children: (onClose: () => void) => ReactNode;
}

export function JoinButton({ label, children }: JoinButtonProps) {
  const barrier = useBarriers()("tokens:admin");
  const [isOpen, setIsOpen] = useState(false);
  return (
    <>
      <Button barrier={barrier} onClick={() => setIsOpen(true)}>
        {label}
      </Button>
      {isOpen && children(() => setIsOpen(false))}
    </>
  );
}

interface JoinDialogProps {
  title: string;
  /** Name of the token in the list of tokens. */
  tokenName: string;
  /** Shown before there is a token. */
  children: ReactNode;
  /** Shown with the command. */
  usage: ReactNode;
  /** The command, from the server's URL and the token. */
  command: (url: string, token: string) => string;
  /** What the command does, for screen readers. */
  label: string;
  onClose: () => void;
}

export function JoinDialog(props: JoinDialogProps) {
  const { title, tokenName, children, usage, command, label, onClose } = props;
  const form = useId();
  const client = useQueryClient();
  const make = useMutation({
    mutationFn: () => ask(api.POST("/api/v1/tokens", { body: { name: tokenName, kind: "join" } })),
    onSuccess: () => client.invalidateQueries({ queryKey: keys.tokens }),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    make.mutate();
  };
  if (make.data?.secret) {
    const line = command(window.location.origin, make.data.secret);
    return (
      <SecretDialog title={title} command={line} label={label} onClose={onClose}>
        {usage}
      </SecretDialog>
    );
  }
  return (
    <Dialog
      title={title}
      onClose={onClose}
      footer={
        <>
          <Button onClick={onClose}>Back</Button>
          <Button type="submit" form={form} look="primary" busy={make.isPending}>
            Create a join token
          </Button>
        </>
      }
    >
      <form id={form} className="stack" onSubmit={submit}>
        {children}
      </form>
      {make.isError && <InlineError error={make.error} />}
    </Dialog>
  );
}
