// Registers a source: a one-time token, and the command of its provisioner.
import { provisionerCommand } from "@/shared/format/shell";
import { JoinButton, JoinDialog } from "@/shared/tokens/JoinDialog";

const TITLE = "Add a source";

export function AddSource() {
  return (
    <JoinButton label={TITLE}>
      {(close) => (
        <JoinDialog
          title={TITLE}
          tokenName="source"
          usage="Run this where the engine is reached. The token registers one source within an hour. It is shown once."
          command={provisionerCommand}
          label="Starts the provisioner"
          onClose={close}
        >
          <p>
            A provisioner registers the sources of its file <code>sources.toml</code>: a login node
            of Slurm, a pod of Kubernetes, or a machine with <code>ssh</code>. It changes a source
            when the file changes.
          </p>
          <p>
            A source whose provisioner has lost its token registers again with a new join token, and
            the former token ends.
          </p>
        </JoinDialog>
      )}
    </JoinButton>
  );
}
