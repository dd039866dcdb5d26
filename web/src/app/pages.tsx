// Pages for unknown paths and for failures of the dashboard itself.
import { useRouteError } from "react-router";
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
