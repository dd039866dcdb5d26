// The view of a job page, kept in the URL so that a link reproduces it.
import { JOB, type JobView } from "@/shared/url/pages";
import { type Change, usePageParams } from "@/shared/url/params";

export interface View extends JobView {
  change: Change<JobView>;
}

export function useView(): View {
  const [values, change] = usePageParams(JOB);
  return { ...values, change };
}
