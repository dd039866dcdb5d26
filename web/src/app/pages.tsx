// Pages for what has no page: unknown paths, and failures of the dashboard itself.
import { useRouteError } from "react-router";
import { ButtonLink } from "@/shared/ui/Button";
import { EmptyState, ErrorState } from "@/shared/ui/Notice";

export function NotFoundPage() {
  return (
    <EmptyState title="Nothing lies at this address">
      <ButtonLink to="/jobs">All jobs</ButtonLink>
    </EmptyState>
  );
}

export function PageError() {
  const error = useRouteError();
  return <ErrorState error={error} onRetry={() => window.location.reload()} />;
}
