// What a failure leads to: the words on the button, and what the resume dialog then begins with.
import type { Attempt } from "@/shared/api/types";
import type { Changes } from "../view";

export type Failure = NonNullable<Attempt["failure"]>;

export interface Remedy {
  label: string;
  /** Parameters of the view with which the resume dialog opens. */
  dialog: Changes;
}

const REMEDIES: Partial<Record<Failure["reason"], Remedy>> = {
  out_of_memory: { label: "Resume with less memory per slot…", dialog: { aim: "memory" } },
  non_finite_loss: { label: "Resume from an earlier checkpoint…", dialog: { aim: "earlier" } },
  node_lost: { label: "Resume on what is there…", dialog: { aim: "free" } },
  preempted: { label: "Resume on what is free…", dialog: { aim: "free" } },
};

const USUAL: Remedy = { label: "Resume…", dialog: { aim: null } };

export function remedyOf(failure: Failure): Remedy {
  return REMEDIES[failure.reason] ?? USUAL;
}
