// The context of every page: the query client and the router.
import { MutationCache, QueryCache, QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { useEffect } from "react";
import { RouterProvider } from "react-router";
import { isPassing, isUnauthenticated, retryInterval } from "@/shared/api/errors";
import { endSession, watchSession } from "@/shared/api/session";
import { router } from "./router";

const MAX_RETRIES = 2;

/** End the session in every tab when a request finds it ended: the shell then shows the login. */
function onError(error: unknown, meta: Record<string, unknown> | undefined): void {
  if (isUnauthenticated(error) && !meta?.sendsSecret) endSession(queryClient);
}

export const queryClient = new QueryClient({
  queryCache: new QueryCache({ onError: (error, { meta }) => onError(error, meta) }),
  mutationCache: new MutationCache({
    onError: (error, _body, _result, { meta }) => onError(error, meta),
  }),
  defaultOptions: {
    queries: {
      // Live events keep cached data current; a reset of the stream reads it again.
      staleTime: 60_000,
      refetchOnWindowFocus: false,
      retry: (tries, error) => tries < MAX_RETRIES && isPassing(error),
      refetchInterval: retryInterval,
    },
  },
});

export function Providers() {
  useEffect(() => watchSession(queryClient), []);
  return (
    <QueryClientProvider client={queryClient}>
      <RouterProvider router={router} />
    </QueryClientProvider>
  );
}
