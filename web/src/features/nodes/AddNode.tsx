// How a machine joins: a one-time token, and the command to run there.
import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { api, ask } from "@/shared/api/client";
import { sessionQuery } from "@/shared/api/queries";
import { joinCommand } from "@/shared/format/shell";
import { Button } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Dialog } from "@/shared/ui/Dialog";
import { Field } from "@/shared/ui/Field";
import { InlineError } from "@/shared/ui/Notice";

const DEFAULT_NAME = "new-node";

/** Only the admin token makes tokens. */
export function AddNode() {
  const session = useQuery(sessionQuery);
  const [isOpen, setIsOpen] = useState(false);
  if (session.data?.kind !== "admin") return null;
  return (
    <>
      <Button onClick={() => setIsOpen(true)}>Add a node</Button>
      {isOpen && <AddNodeDialog onClose={() => setIsOpen(false)} />}
    </>
  );
}

function AddNodeDialog({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const make = useMutation({
    mutationFn: () =>
      ask(api.POST("/api/v1/tokens", { body: { name: name || DEFAULT_NAME, kind: "join" } })),
  });
  return (
    <Dialog
      title="Add a node"
      onClose={onClose}
      footer={
        make.data ? (
          <Button look="primary" onClick={onClose}>
            Done
          </Button>
        ) : (
          <Button look="primary" busy={make.isPending} onClick={() => make.mutate()}>
            Create a join token
          </Button>
        )
      }
    >
      {make.data?.secret ? (
        <>
          <p>
            Run this on the new machine, where the worker and the trainer are installed. The token
            lets one machine join within an hour. It is shown once.
          </p>
          <CommandLine command={joinCommand(window.location.origin, make.data.secret)} />
        </>
      ) : (
        <Field
          htmlFor="node-name"
          label="What the token is for"
          help="Shown in the list of tokens."
        >
          <input
            id="node-name"
            className="input"
            placeholder={DEFAULT_NAME}
            value={name}
            aria-describedby="node-name-said"
            onChange={(event) => setName(event.target.value)}
          />
        </Field>
      )}
      {make.isError && <InlineError error={make.error} />}
    </Dialog>
  );
}
