// Confirms the submission of a job that does not fit into the memory of its slots.
import { problemText } from "@/shared/api/errors";
import type { AnyPlan } from "@/shared/api/types";
import { ActionDialog } from "@/shared/ui/Dialog";

interface MisfitDialogProps {
  plan: AnyPlan;
  command: string;
  submit: { isPending: boolean; error: unknown; mutate: () => void };
  onClose: () => void;
}

export function MisfitDialog({ plan, command, submit, onClose }: MisfitDialogProps) {
  return (
    <ActionDialog
      title="Submit a job that does not fit?"
      label="Submit it"
      action={submit}
      command={command}
      onClose={onClose}
    >
      <p>Its first step will most likely run out of memory. The plan warns:</p>
      <ul className="plan-problems">
        {plan.warnings.map((warning) => (
          <li key={warning.pointer + warning.detail}>{problemText(warning, "spec")}</li>
        ))}
      </ul>
    </ActionDialog>
  );
}
