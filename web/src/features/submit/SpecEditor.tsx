// A draft of a spec as form and as text, its plan, and the submit button.

import { useCallback, useMemo, useState } from "react";
import { ApiError } from "@/shared/api/errors";
import type { RankedLayout } from "@/shared/api/types";
import { useBarriers } from "@/shared/api/useMay";
import { isObject, type JsonObject } from "@/shared/format/document";
import { Button } from "@/shared/ui/Button";
import { InlineError } from "@/shared/ui/Notice";
import { type Tab, Tabs } from "@/shared/ui/Tabs";
import { SUBMIT } from "@/shared/url/pages";
import { usePageParams, type ValuesOf } from "@/shared/url/params";
import { submitCommand } from "./commandLine";
import { draftProblems } from "./draftProblems";
import { type Edit, SpecForm } from "./form/SpecForm";
import { SpecText } from "./form/SpecText";
import { otherKind } from "./kind";
import { MisfitDialog } from "./plan/MisfitDialog";
import { PlanPanel } from "./plan/PlanPanel";
import { usePlan } from "./plan/usePlan";
import { placeProblems } from "./problems";
import { type FormSection, sectionsFor, shownNames } from "./schema";
import { projectOf, withLayout } from "./spec";
import { useSubmit } from "./useSubmit";

const VIEWS: readonly Tab<ValuesOf<typeof SUBMIT>["view"]>[] = [
  { name: "form", label: "Form" },
  { name: "toml", label: "TOML" },
];

interface SpecEditorProps {
  sections: FormSection[];
  /** Pointers that a program cannot have. */
  ofTrainer: readonly string[];
  start: JsonObject;
  /** Pointers of the other job's hidden values; these are null in `start`. */
  hidden: readonly string[];
  /** Name of the job with the initial spec. */
  from: string | undefined;
}

export function SpecEditor(props: SpecEditorProps) {
  const { sections: all, ofTrainer, start, hidden, from } = props;
  const [spec, setSpec] = useState(start);
  const [parked, setParked] = useState<JsonObject>({});
  const hasProgram = isObject(spec.program);
  const sections = useMemo(
    () => sectionsFor(all, ofTrainer, hasProgram),
    [all, ofTrainer, hasProgram],
  );
  const [{ view }, change] = usePageParams(SUBMIT);
  const plan = usePlan(spec);
  const submit = useSubmit(spec);
  // A submission may find problems that the plan did not; a change of the spec resets both.
  const refusal = submit.error instanceof ApiError ? submit.error : plan.refusal;
  const errors = useMemo(() => {
    const own = draftProblems(spec, sections, hidden);
    // The server gets null or a text instead of a list; a problem of the typed text explains it better.
    const named = new Set(own.map(({ pointer }) => pointer));
    return [...own, ...(refusal?.errors ?? []).filter(({ pointer }) => !named.has(pointer))];
  }, [spec, sections, hidden, refusal]);
  const problems = useMemo(() => placeProblems(errors, sections), [errors, sections]);
  const warnings = useMemo(
    () => placeProblems(refusal ? [] : (plan.plan?.warnings ?? []), sections),
    [refusal, plan.plan, sections],
  );
  const { reset } = submit;
  const edit: Edit = useCallback(
    (change) => {
      reset();
      setSpec(change);
    },
    [reset],
  );
  const planned = plan.plan?.kind === "trainer" ? plan.plan.batch.micro_batch_size : 1;
  const changeKind = () => {
    const changed = otherKind({ spec, parked }, ofTrainer);
    setParked(changed.parked);
    edit(() => changed.spec);
  };
  const chooseLayout = (option: RankedLayout) =>
    edit((draft) => withLayout(draft, option, planned));
  const command = useMemo(() => submitCommand(spec, shownNames(all)), [spec, all]);
  const [isMisfitAsked, setIsMisfitAsked] = useState(false);
  const isMisfit = !plan.isOld && plan.plan?.kind === "trainer" && plan.plan.fits === false;
  const send = () => (isMisfit ? setIsMisfitAsked(true) : submit.mutate());
  const barrier = useBarriers()("jobs:write", projectOf(spec));
  const button = (
    <Button look="primary" barrier={barrier} busy={submit.isPending} onClick={send}>
      Submit job
    </Button>
  );
  return (
    <>
      <title>New job · Trainyard</title>
      <header className="page-header">
        <h1>{from ? `New job like ${from}` : "New job"}</h1>
      </header>
      <div className="submit">
        <div>
          <Tabs
            label="How the spec is written"
            tabs={VIEWS}
            active={view}
            onSelect={(name) => change({ view: name })}
          >
            {view === "form" ? (
              <SpecForm
                sections={sections}
                spec={spec}
                onKind={changeKind}
                problems={problems}
                warnings={warnings}
                edit={edit}
              />
            ) : (
              <SpecText sections={all} spec={spec} hidden={hidden} edit={edit} />
            )}
          </Tabs>
        </div>
        <PlanPanel
          spec={spec}
          planned={plan}
          refusal={refusal}
          errors={errors}
          command={command}
          onLayout={chooseLayout}
        >
          {isMisfitAsked && plan.plan && (
            <MisfitDialog
              plan={plan.plan}
              command={command}
              submit={submit}
              onClose={() => setIsMisfitAsked(false)}
            />
          )}
          {submit.isError && !(submit.error instanceof ApiError && submit.error.errors.length) && (
            <InlineError error={submit.error} />
          )}
          {button}
        </PlanPanel>
      </div>
    </>
  );
}
