// Shows a token once, in the command or the link that uses it.
import type { ReactNode } from "react";
import { Button } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Dialog } from "@/shared/ui/Dialog";

interface SecretDialogProps {
  title: string;
  /** What to do with it. */
  children: ReactNode;
  command: string;
  /** What the command does, for screen readers. */
  label: string;
  /** It is a link and no command. */
  isText?: boolean;
  onClose: () => void;
}

export function SecretDialog(props: SecretDialogProps) {
  const { title, children, command, label, isText, onClose } = props;
  return (
    <Dialog
      title={title}
      onClose={onClose}
      footer={
        <Button look="primary" onClick={onClose}>
          Done
        </Button>
      }
    >
      <p>{children}</p>
      <CommandLine command={command} label={label} isText={isText} />
    </Dialog>
  );
}
