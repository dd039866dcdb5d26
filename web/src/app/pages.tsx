// Pages for unknown paths, for failures of the dashboard itself, and for people without a project.
import { useQuery } from "@tanstack/react-query";
import { Outlet, useRouteError } from "react-router";
import { sessionQuery } from "@/shared/api/queries";
import type { Permission } from "@/shared/api/types";
import { useMay, useSession } from "@/shared/api/useMay";
import { ButtonLink } from "@/shared/ui/Button";
import { EmptyState, ErrorState } from "@/shared/ui/Notice";

export function NotFoundPage() {
  return (
    <EmptyState title="Page not found">
      <ButtonLink to="/jobs">All jobs</ButtonLink>
    </EmptyState>
  );
}

export function PageError() {
  const error = useRouteError();
  return <ErrorState error={error} onRetry={() => window.location.reload()} />;
}

/** The pages of projects, for a person with a permission in at least one project. */
export function OfProjects({ permission }: { permission: Permission }) {
  const isMember = useMay(permission);
  // A session by password or issuer has all permissions of its user; the server's refusal explains other ones.
  const kind = useSession()?.kind;
  const isPerson = kind === "password" || kind === "issuer";
  return isMember || !isPerson ? <Outlet /> : <NoProject />;
}

/** Period of reads: a person without a project gets no event of a new role. */
const ROLE_MILLISECONDS = 5_000;

function NoProject() {
  useQuery({ ...sessionQuery, refetchInterval: ROLE_MILLISECONDS });
  return (
    <>
      <title>Trainyard</title>
      <EmptyState title="You are in no project yet">
        <p>
          Jobs belong to projects. A maintainer of a project can add you; this page then shows the
          jobs.
        </p>
        <ButtonLink to="/profile">Your profile</ButtonLink>
      </EmptyState>
    </>
  );
}
