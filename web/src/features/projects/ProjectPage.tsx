// One project: its members with their roles, and its service accounts.
import { useQuery } from "@tanstack/react-query";
import { useParams } from "react-router";
import { ApiError } from "@/shared/api/errors";
import { membersQuery, projectQuery } from "@/shared/api/queries";
import type { Project } from "@/shared/api/types";
import { useAreRolesKnown, useBarriers, useSession } from "@/shared/api/useMay";
import { plural } from "@/shared/format/numbers";
import { Secrets } from "@/shared/secrets/Secrets";
import { ButtonLink } from "@/shared/ui/Button";
import { Absent, ErrorState } from "@/shared/ui/Notice";
import { SkeletonLines } from "@/shared/ui/Skeleton";
import { projectJobsPath } from "@/shared/url/pages";
import { ServiceAccounts } from "./accounts/ServiceAccounts";
import { Groups } from "./groups/Groups";
import { Members } from "./members/Members";
import { ownRoleWords } from "./members/roles";
import "./members/members.css";

export function ProjectPage() {
  const { project: name = "" } = useParams();
  const project = useQuery(projectQuery(name));
  // A project in which the caller has lost the role must not stay on the page.
  const isGone = project.error instanceof ApiError && project.error.status === 404;
  const areRolesKnown = useAreRolesKnown();
  if (project.data && !isGone && areRolesKnown)
    return <LoadedProject key={name} project={project.data} />;
  if (project.error) {
    return (
      <>
        <ErrorState error={project.error} onRetry={() => void project.refetch()} />
        <p className="project-elsewhere">
          <ButtonLink to="/projects">All projects</ButtonLink>
        </p>
      </>
    );
  }
  return <SkeletonLines lines={8} />;
}

function LoadedProject({ project }: { project: Project }) {
  const { name, description } = project;
  const hasRole = project.role !== null;
  const members = useQuery({ ...membersQuery(name), enabled: hasRole });
  const session = useSession();
  return (
    <>
      <title>{`${name} · Trainyard`}</title>
      <header className="page-header">
        <h1>{name}</h1>
        {hasRole && (
          <div className="page-actions row">
            <ButtonLink to={projectJobsPath(name)}>Jobs</ButtonLink>
          </div>
        )}
      </header>
      <div className="stack project-parts">
        <div>
          {description && <p>{description}</p>}
          <p className="muted">
            {members.data && `${ownRoleWords(project, members.data, session)} · `}
            {usageWords(project)}
          </p>
        </div>
        {members.data ? (
          <>
            <Members project={project} members={members.data} />
            <Groups project={name} />
            <ServiceAccounts
              project={project}
              accounts={members.data.filter(({ kind }) => kind === "service")}
            />
            <ProjectSecrets project={name} />
          </>
        ) : hasRole ? (
          <Absent query={members} lines={6} />
        ) : (
          <p className="muted">
            You have no role in this project, so you do not see its jobs and members.
          </p>
        )}
      </div>
    </>
  );
}

/** The secrets of a project, for those who may use them. */
function ProjectSecrets({ project }: { project: string }) {
  const barriers = useBarriers();
  if (barriers("secrets:use", project)) return null;
  return (
    <Secrets
      holder={project}
      headingId="secrets"
      barrier={barriers("secrets:write", project)}
      purpose="A secret gives jobs a value, such as an access token, that no page shows."
    />
  );
}

function usageWords({ held_slots: held, waiting_jobs: waiting }: Project): string {
  return `${plural(held, "slot")} held · ${plural(waiting, "job waits", "jobs wait")}`;
}
