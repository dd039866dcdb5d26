// One draft of a spec, as form and as text, its plan, and the button that submits it.

import { useCallback, useMemo, useState } from "react";
import { ApiError } from "@/shared/api/errors";
import type { RankedLayout } from "@/shared/api/types";
import { isObject, type JsonObject } from "@/shared/format/document";
import { Button } from "@/shared/ui/Button";
import { InlineError } from "@/shared/ui/Notice";
import { type Tab, Tabs } from "@/shared/ui/Tabs";
import { SUBMIT } from "@/shared/url/pages";
import { usePageParams, type ValuesOf } from "@/shared/url/params";
import { submitCommand } from "./commandLine";
import { type Edit, SpecForm } from "./form/SpecForm";
import { SpecText } from "./form/SpecText";
import { MisfitDialog } from "./plan/MisfitDialog";
import { PlanPanel } from "./plan/PlanPanel";
import { usePlan } from "./plan/usePlan";
import { NO_PROBLEMS, placeProblems } from "./problems";
import { type FormSection, sectionsFor } from "./schema";
import { withLayout } from "./spec";
import { useSubmit } from "./useSubmit";

const VIEWS: readonly Tab<ValuesOf<typeof SUBMIT>["view"]>[] = [
  { name: "form", label: "Form" },
  { name: "json", label: "JSON" },
];

interface SpecEditorProps {
  sections: FormSection[];
  start: JsonObject;
  /** Name of the job whose spec it starts with. */
  from: string | undefined;
}

export function SpecEditor({ sections: all, start, from }: SpecEditorProps) {
  const [spec, setSpec] = useState(start);
  const hasProgram = isObject(spec.program);
  const sections = useMemo(() => sectionsFor(all, hasProgram), [all, hasProgram]);
  const [{ view }, change] = usePageParams(SUBMIT);
  const plan = usePlan(spec);
  const submit = useSubmit(spec);
  // A submission may find problems that the plan did not; a change of the spec resets both.
  const refusal = submit.error instanceof ApiError ? submit.error : plan.refusal;
  const problems = useMemo(
    () => (refusal ? placeProblems(refusal.errors, sections) : NO_PROBLEMS),
    [refusal, sections],
  );
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
  const chooseLayout = (option: RankedLayout) =>
    edit((draft) => withLayout(draft, option, planned));
  const [isMisfitAsked, setIsMisfitAsked] = useState(false);
  const isMisfit = !plan.isOld && plan.plan?.kind === "trainer" && plan.plan.fits === false;
  const send = () => (isMisfit ? setIsMisfitAsked(true) : submit.mutate());
  const button = (
    <Button look="primary" busy={submit.isPending} onClick={send}>
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
                problems={problems}
                warnings={warnings}
                edit={edit}
              />
            ) : (
              <SpecText spec={spec} edit={edit} />
            )}
          </Tabs>
        </div>
        <PlanPanel
          spec={spec}
          planned={plan}
          refusal={refusal}
          elsewhere={problems.elsewhere}
          onLayout={chooseLayout}
        >
          {isMisfitAsked && plan.plan && (
            <MisfitDialog
              plan={plan.plan}
              command={submitCommand(spec)}
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
