// What a failure leads to: the words on the button, and what the resume dialog then begins with.
import type { Attempt } from "@/shared/api/types";
import type { Changes } from "../view";

export type Failure = NonNullable<Attempt["failure"]>;

/** What went wrong in a word or two; of a value that is not finite, which one. */
export function reasonWords({ reason, message }: Failure): string {
  if (reason !== "non_finite_loss") return reason.replaceAll("_", " ");
  const name = /^([a-z_]+)\/([a-z_]+) is /.exec(message)?.[2];
  return `${name?.replaceAll("_", " ") ?? "a value"} not finite`;
}

export interface Remedy {
  label: string;
  /** Parameters of the view with which the resume dialog opens. */
  dialog: Changes;
  /** What a resume cannot change: the field with which the form of a new job opens. */
  field?: string;
}

const REMEDIES: Partial<Record<Failure["reason"], Remedy>> = {
  out_of_memory: { label: "Resume with less memory per slot…", dialog: { aim: "memory" } },
  non_finite_loss: {
    label: "Resume from an earlier checkpoint…",
    dialog: { aim: "earlier" },
    field: "optimizer.lr",
  },
  loss_spike: {
    label: "Resume from an earlier checkpoint…",
    dialog: { aim: "earlier" },
    field: "guard.loss_spike",
  },
  data_error: { label: "Resume…", dialog: { aim: null }, field: "data." },
  node_lost: { label: "Resume on what is there…", dialog: { aim: "free" } },
  preempted: { label: "Resume on what is free…", dialog: { aim: "free" } },
};

const USUAL: Remedy = { label: "Resume…", dialog: { aim: null } };

export function remedyOf(failure: Failure): Remedy {
  return REMEDIES[failure.reason] ?? USUAL;
}
