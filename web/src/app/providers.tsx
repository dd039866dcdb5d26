// What surrounds every page: the query client, and the router.
import { MutationCache, QueryCache, QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "react-router";
import { ApiError, isUnauthenticated } from "@/shared/api/errors";
import { keys } from "@/shared/api/queries";
import { router } from "./router";

const MOST_RETRIES = 2;

/** A session that ended anywhere ends everywhere: the shell then shows the login. */
function onError(error: unknown): void {
  if (isUnauthenticated(error)) queryClient.setQueryData(keys.session, null);
}

export const queryClient = new QueryClient({
  queryCache: new QueryCache({ onError }),
  mutationCache: new MutationCache({ onError }),
  defaultOptions: {
    queries: {
      // Live events keep what is shown true, and a reset of the stream reads it afresh.
      staleTime: 60_000,
      refetchOnWindowFocus: false,
      // A refusal stays a refusal; a server that restarts comes back.
      retry: (tries, error) =>
        tries < MOST_RETRIES && !(error instanceof ApiError && error.status < 500),
    },
  },
});

export function Providers() {
  return (
    <QueryClientProvider client={queryClient}>
      <RouterProvider router={router} />
    </QueryClientProvider>
  );
}
