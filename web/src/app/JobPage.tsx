// The page of one job: state and actions, then a tab for each part.
import { useQuery } from "@tanstack/react-query";
import { useParams } from "react-router";
import { Artifacts } from "@/features/artifacts/Artifacts";
import { Attempts } from "@/features/attempts/Attempts";
import { Charts } from "@/features/charts/Charts";
import { Checkpoints } from "@/features/checkpoints/Checkpoints";
import { Events } from "@/features/events/Events";
import { Facts } from "@/features/facts/Facts";
import { Goodput } from "@/features/goodput/Goodput";
import { useOpenDialog } from "@/features/job/Actions";
import { JobHeader } from "@/features/job/JobHeader";
import { VerbDialog } from "@/features/job/VerbDialog";
import { Logs } from "@/features/logs/Logs";
import { Provenance } from "@/features/provenance/Provenance";
import { Ranks } from "@/features/ranks/Ranks";
import { ResumeDialog } from "@/features/resume/ResumeDialog";
import { SpecView } from "@/features/spec/SpecView";
import { ApiError } from "@/shared/api/errors";
import { jobQuery } from "@/shared/api/queries";
import type { Job } from "@/shared/api/types";
import { useAreRolesKnown } from "@/shared/api/useMay";
import { useView } from "@/shared/job/view";
import { ButtonLink } from "@/shared/ui/Button";
import { ErrorState } from "@/shared/ui/Notice";
import { SkeletonLines } from "@/shared/ui/Skeleton";
import { Tabs } from "@/shared/ui/Tabs";
import "@/shared/job/job.css";

const TABS = [
  { name: "charts", label: "Charts", Panel: Charts },
  { name: "facts", label: "Facts", Panel: Facts },
  { name: "logs", label: "Logs", Panel: Logs },
  { name: "artifacts", label: "Artifacts", Panel: Artifacts },
  { name: "attempts", label: "Attempts", Panel: Attempts },
  { name: "ranks", label: "Ranks", Panel: Ranks },
  { name: "goodput", label: "Goodput", Panel: Goodput },
  { name: "checkpoints", label: "Checkpoints", Panel: Checkpoints },
  { name: "events", label: "Events", Panel: Events },
  { name: "provenance", label: "Provenance", Panel: Provenance },
  { name: "spec", label: "Spec", Panel: SpecView },
] as const;

/** The tabs of a job that another tool recorded. */
const IMPORTED_TABS = TABS.filter(({ name }) =>
  ["charts", "facts", "events", "spec"].includes(name),
);
/** The tabs of a job of the built-in trainer: its facts are its spec. */
const TRAINER_TABS = TABS.filter(({ name }) => name !== "facts");

function tabsOf(job: Job): typeof TRAINER_TABS | typeof TABS {
  if (job.imported_from !== null) return IMPORTED_TABS;
  return job.spec.program ? TABS : TRAINER_TABS;
}

export function JobPage() {
  const { jobId = "" } = useParams();
  const job = useQuery(jobQuery(jobId));
  // A job that another person deleted must not stay on the page.
  const isGone = job.error instanceof ApiError && job.error.status === 404;
  // No button is enabled, and no dialog of the URL opened, before the roles forbid it.
  const areRolesKnown = useAreRolesKnown();
  if (job.data && !isGone && areRolesKnown) return <LoadedJob key={jobId} job={job.data} />;
  if (job.isError) {
    return (
      <>
        <ErrorState error={job.error} onRetry={() => void job.refetch()} />
        <p className="job-elsewhere">
          <ButtonLink to="/jobs">All jobs</ButtonLink>
        </p>
      </>
    );
  }
  return <SkeletonLines lines={12} />;
}

function LoadedJob({ job }: { job: Job }) {
  const view = useView();
  const tabs = tabsOf(job);
  const active = tabs.find((tab) => tab.name === view.tab) ?? TABS[0];
  return (
    <>
      <title>{`${job.name} · Trainyard`}</title>
      <JobHeader job={job} />
      <Tabs
        label="Parts of the job"
        tabs={tabs}
        active={active.name}
        onSelect={(tab) => view.change({ tab }, "push")}
      >
        <div className="job-panel">
          <active.Panel job={job} />
        </div>
      </Tabs>
      <OpenDialog job={job} />
    </>
  );
}

/** The page opens the dialogs, because no feature imports another one. */
function OpenDialog({ job }: { job: Job }) {
  const open = useOpenDialog(job);
  if (open === null) return null;
  const { verb, gone, onClose } = open;
  const props = { job, gone, onClose };
  // The key gives each verb its own dialog: input for one verb is not kept for the next.
  if (verb === "resume" || verb === "resize") {
    return <ResumeDialog key={verb} verb={verb} {...props} />;
  }
  return <VerbDialog key={verb} verb={verb} {...props} />;
}
