// The plan of the draft: layout, memory, batch, size, warnings; and the command line.

import type { ReactNode } from "react";
import type { ApiError } from "@/shared/api/errors";
import type { AnyPlan, Plan, Problem, ProgramPlan, RankedLayout } from "@/shared/api/types";
import { isObject, type JsonObject } from "@/shared/format/document";
import { bytes, count, exponential, plural, short, shortCount } from "@/shared/format/numbers";
import { joinWords } from "@/shared/format/shell";
import { autoWords } from "@/shared/format/spec";
import { Badge } from "@/shared/ui/Badge";
import { CommandLine } from "@/shared/ui/CommandLine";
import { cx } from "@/shared/ui/cx";
import { InlineError } from "@/shared/ui/Notice";
import { SkeletonLines } from "@/shared/ui/Skeleton";
import { controlId } from "../form/FieldRow";
import { BatchPartition } from "./BatchPartition";
import { ListedLayouts } from "./ListedLayouts";
import { MemoryBar } from "./MemoryBar";
import { RankedLayouts } from "./RankedLayouts";
import type { Planned } from "./usePlan";

interface PlanPanelProps {
  spec: JsonObject;
  planned: Planned;
  refusal: ApiError | null;
  /** All problems of the draft. */
  errors: readonly Problem[];
  /** Command line that submits the same job. */
  command: string;
  /** Write the axes of a ranked layout into the draft. */
  onLayout: (option: RankedLayout) => void;
  /** Content below the plan: the submit button. */
  children: ReactNode;
}

export function PlanPanel(props: PlanPanelProps) {
  const { spec, planned, refusal, errors, command, onLayout, children } = props;
  const { isOld, error } = planned;
  // The last legal plan may belong to the other kind of job.
  const plan =
    (planned.plan?.kind === "program") === isObject(spec.program) ? planned.plan : undefined;
  return (
    <aside className="plan panel" aria-label="Plan">
      {error && <InlineError error={error} className="plan-part" />}
      {errors.length > 0 && <Problems title="Errors" tone="bad" problems={errors} />}
      {refusal && errors.length === 0 && <InlineError error={refusal} className="plan-part" />}
      <div className={cx("plan-body", isOld && "plan-old")}>
        {plan ? (
          <PlanView plan={plan} onLayout={onLayout} />
        ) : (
          !refusal && !error && errors.length === 0 && <SkeletonLines lines={9} />
        )}
      </div>
      <section className="plan-part">
        <h3>Command line</h3>
        <CommandLine command={command} label="Submits the same job" />
      </section>
      <div className="plan-part plan-act">{children}</div>
    </aside>
  );
}

function PlanView({ plan, onLayout }: { plan: AnyPlan } & Pick<PlanPanelProps, "onLayout">) {
  if (plan.kind === "program") return <ProgramView plan={plan} />;
  return <TrainerView plan={plan} onLayout={onLayout} />;
}

/** The plan of a program: before it runs, only its slots and its command are known. */
function ProgramView({ plan }: { plan: ProgramPlan }) {
  return (
    <>
      <header className="plan-part plan-head row">
        <h2>{plan.layouts.length > 0 ? plan.name : "program"}</h2>
        <span className="muted">
          {plural(plan.world_size, "slot")}
          {plan.steps !== null && ` · ${plural(plan.steps, "step")}`}
        </span>
      </header>
      <section className="plan-part">
        <h3>Command</h3>
        <code>{joinWords(plan.command)}</code>
      </section>
      {plan.layouts.length > 0 && <ListedLayouts plan={plan} />}
      <section className="plan-part">
        <h3>Not known before it runs</h3>
        <ul className="faint">
          {plan.unknown.map((what) => (
            <li key={what}>{what}</li>
          ))}
        </ul>
      </section>
      {plan.warnings.length > 0 && (
        <Problems title="Warnings" tone="warn" problems={plan.warnings} />
      )}
    </>
  );
}

function TrainerView({ plan, onLayout }: { plan: Plan } & Pick<PlanPanelProps, "onLayout">) {
  const facts: [string, string, string?][] = [
    ["Parameters", shortCount(plan.parameters.total), count(plan.parameters.total)],
    ["Tokens per step", shortCount(plan.tokens_per_step), count(plan.tokens_per_step)],
    ["Total tokens", shortCount(plan.total_tokens), count(plan.total_tokens)],
    ["Total FLOPs", short(plan.total_flops), exponential(plan.total_flops, 3)],
    ["Checkpoint", bytes(plan.checkpoint_bytes), `${count(plan.checkpoint_bytes)} bytes`],
    [
      "Checkpoints kept",
      `${bytes(plan.checkpoints_bytes)} (${count(plan.checkpoints_kept)})`,
      `${count(plan.checkpoints_bytes)} bytes`,
    ],
  ];
  const auto = autoWords(plan.auto);
  return (
    <>
      <header className="plan-part plan-head row">
        <h2>{plan.name}</h2>
        <span className="muted">
          {plural(plan.world_size, "slot")} · {plural(plan.steps, "step")}
        </span>
        <Fits fits={plan.fits} />
      </header>
      <section className="plan-part" aria-label="Memory">
        <MemoryBar memory={plan.memory} available={plan.device_memory_bytes} />
      </section>
      <RankedLayouts plan={plan} onChoose={onLayout} />
      <section className="plan-part" aria-label="Batch">
        <BatchPartition batch={plan.batch} />
      </section>
      <dl className="plan-part facts">
        {facts.map(([name, value, whole]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd title={whole}>{value}</dd>
          </div>
        ))}
      </dl>
      {auto && (
        <section className="plan-part" aria-label="Auto">
          <h3>
            Auto <span className="muted">on {plan.device} slots</span>
          </h3>
          <p className="faint">{auto}</p>
        </section>
      )}
      {plan.warnings.length > 0 && (
        <Problems title="Warnings" tone="warn" problems={plan.warnings} />
      )}
    </>
  );
}

function Fits({ fits }: { fits: boolean | null }) {
  if (fits === null) return <Badge title="No node has registered yet">memory unknown</Badge>;
  return fits ? <Badge tone="ok">fits</Badge> : <Badge tone="bad">does not fit</Badge>;
}

interface ProblemsProps {
  title: string;
  tone: "bad" | "warn";
  problems: readonly Problem[];
}

function Problems({ title, tone, problems }: ProblemsProps) {
  return (
    <section className="plan-part" aria-live="polite">
      <h3 className={`tone-${tone}`}>{title}</h3>
      <ul className="plan-problems">
        {problems.map(({ pointer, detail }) => (
          <li key={pointer + detail}>
            <button type="button" className="link mono" onClick={() => goTo(pointer)}>
              {pointer.slice(1).replaceAll("/", ".") || "spec"}
            </button>{" "}
            {detail}
          </li>
        ))}
      </ul>
    </section>
  );
}

function goTo(pointer: string): void {
  const control = document.getElementById(controlId(pointer));
  control?.scrollIntoView({ block: "center" });
  control?.focus({ preventScroll: true });
}
