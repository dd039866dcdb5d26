// Submits a job: a form generated from the schema, and the plan next to it.

import { useQuery } from "@tanstack/react-query";
import { isAdmin } from "@/shared/api/barriers";
import { jobQuery, projectsQuery, schemaQuery } from "@/shared/api/queries";
import { useSession } from "@/shared/api/useMay";
import { type JsonObject, sparseSpec, withValue } from "@/shared/format/document";
import { ErrorState } from "@/shared/ui/Notice";
import { SkeletonLines } from "@/shared/ui/Skeleton";
import { SUBMIT } from "@/shared/url/pages";
import { usePageParams } from "@/shared/url/params";
import { SpecEditor } from "./SpecEditor";
import { formOf, trainerPointers } from "./schema";
import { DEFAULT_PROJECT, homeProject } from "./spec";
import "./submit.css";

/** `?from=<job id>` starts with the spec of another job. */
export function SubmitPage() {
  const [{ from }] = usePageParams(SUBMIT);
  const schema = useQuery(schemaQuery);
  const source = useQuery({ ...jobQuery(from ?? ""), enabled: from !== null });
  const home = useHome();
  const failed = schema.error ?? source.error;
  if (failed) {
    const retry = () => void Promise.all([schema.refetch(), from && source.refetch()]);
    return <ErrorState error={failed} onRetry={retry} />;
  }
  if (!schema.data || home === null || (from && !source.data)) return <SkeletonLines lines={14} />;
  // The spec came as JSON and is read as JSON again.
  const whole = source.data?.spec as unknown as JsonObject | undefined;
  const { spec, hidden } = sparseSpec(whole ?? {}, source.data?.set_fields ?? []);
  // Hidden values must be entered again or removed before the copy is submitted.
  const draft = hidden.reduce((changed, each) => withValue(changed, each, null), spec);
  const isAway = !from && home !== DEFAULT_PROJECT;
  const start = isAway ? withValue(draft, "/project", home) : draft;
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

/** Return the project of a new job; null until it is known. */
function useHome(): string | null {
  // An admin may submit in every project.
  const isNeeded = !isAdmin(useSession());
  const { data, isError } = useQuery({ ...projectsQuery, enabled: isNeeded });
  if (!isNeeded || isError) return DEFAULT_PROJECT;
  return data ? homeProject(data) : null;
}
