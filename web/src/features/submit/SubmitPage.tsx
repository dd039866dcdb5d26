// Submits a job: a form generated from the schema, and the plan next to it.

import { useQuery } from "@tanstack/react-query";
import { jobQuery, schemaQuery } from "@/shared/api/queries";
import { type JsonObject, sparseSpec, withValue } from "@/shared/format/document";
import { ErrorState } from "@/shared/ui/Notice";
import { SkeletonLines } from "@/shared/ui/Skeleton";
import { SUBMIT } from "@/shared/url/pages";
import { usePageParams } from "@/shared/url/params";
import { SpecEditor } from "./SpecEditor";
import { formOf, trainerPointers } from "./schema";
import "./submit.css";

/** `?from=<job id>` starts with the spec of another job. */
export function SubmitPage() {
  const [{ from }] = usePageParams(SUBMIT);
  const schema = useQuery(schemaQuery);
  const source = useQuery({ ...jobQuery(from ?? ""), enabled: from !== null });
  const failed = schema.error ?? source.error;
  if (failed) {
    const retry = () => void Promise.all([schema.refetch(), from && source.refetch()]);
    return <ErrorState error={failed} onRetry={retry} />;
  }
  if (!schema.data || (from && !source.data)) return <SkeletonLines lines={14} />;
  // The spec came as JSON and is read as JSON again.
  const whole = source.data?.spec as unknown as JsonObject | undefined;
  const { spec, hidden } = sparseSpec(whole ?? {}, source.data?.set_fields ?? []);
  // Hidden values must be entered again or removed before the copy is submitted.
  const start = hidden.reduce((draft, each) => withValue(draft, each, null), spec);
  return (
    <SpecEditor
      key={from}
      sections={formOf(schema.data)}
      ofTrainer={trainerPointers(schema.data)}
      start={start}
      hidden={hidden}
      from={source.data?.name}
    />
  );
}
