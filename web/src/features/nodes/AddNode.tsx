// Adds a machine: a one-time token, and the command to run there.
import { useState } from "react";
import { joinCommand } from "@/shared/format/shell";
import { JoinButton, JoinDialog } from "@/shared/tokens/JoinDialog";
import { Field } from "@/shared/ui/Field";

const TITLE = "Add a node";
const DEFAULT_NAME = "new-node";

export function AddNode() {
  return <JoinButton label={TITLE}>{(close) => <AddNodeDialog onClose={close} />}</JoinButton>;
}

function AddNodeDialog({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  return (
    <JoinDialog
      title={TITLE}
      tokenName={name || DEFAULT_NAME}
      usage="Run this on the new machine, where the worker and the trainer are installed. The token lets one machine join within an hour. It is shown once."
      command={joinCommand}
      label="Starts the worker"
      onClose={onClose}
    >
      <Field htmlFor="node-name" label="What the token is for" help="Shown in the list of tokens.">
        <input
          id="node-name"
          className="input"
          maxLength={80}
          placeholder={DEFAULT_NAME}
          value={name}
          aria-describedby="node-name-said"
          onChange={(event) => setName(event.target.value)}
        />
      </Field>
    </JoinDialog>
  );
}
