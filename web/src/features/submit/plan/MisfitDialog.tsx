// Has a person decide about a job whose plan does not fit into the memory of its slots.
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
      <ul>
        {plan.warnings.map(({ pointer, detail }) => (
          <li key={`${pointer} ${detail}`}>{detail}</li>
        ))}
      </ul>
    </ActionDialog>
  );
}
