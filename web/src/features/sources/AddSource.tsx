// How a source registers: a one-time token, and the command of its provisioner.
import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { api, ask } from "@/shared/api/client";
import { sessionQuery } from "@/shared/api/queries";
import { provisionerCommand } from "@/shared/format/shell";
import { Button } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Dialog } from "@/shared/ui/Dialog";
import { InlineError } from "@/shared/ui/Notice";

const TOKEN_NAME = "source";

/** Only the admin token makes tokens. */
export function AddSource() {
  const session = useQuery(sessionQuery);
  const [isOpen, setIsOpen] = useState(false);
  if (session.data?.kind !== "admin") return null;
  return (
    <>
      <Button onClick={() => setIsOpen(true)}>Add a source</Button>
      {isOpen && <AddSourceDialog onClose={() => setIsOpen(false)} />}
    </>
  );
}

function AddSourceDialog({ onClose }: { onClose: () => void }) {
  const make = useMutation({
    mutationFn: () => ask(api.POST("/api/v1/tokens", { body: { name: TOKEN_NAME, kind: "join" } })),
  });
  return (
    <Dialog
      title="Add a source"
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
            Run this where the engine is reached. The token registers one source within an hour. It
            is shown once.
          </p>
          <CommandLine
            command={provisionerCommand(window.location.origin, make.data.secret)}
            label="Starts the provisioner"
          />
        </>
      ) : (
        <>
          <p>
            A provisioner registers the sources of its file <code>sources.toml</code>: a login node
            of Slurm, a pod of Kubernetes, or a machine with <code>ssh</code>. It changes a source
            when the file changes.
          </p>
          <p>
            A source whose provisioner has lost its token registers again with a new join token, and
            the former token ends.
          </p>
        </>
      )}
      {make.isError && <InlineError error={make.error} />}
    </Dialog>
  );
}
