// The ways to log in on this server.
import { queryOptions } from "@tanstack/react-query";
import { api, ask } from "@/shared/api/client";
import { keys } from "@/shared/api/queries";

export const waysQuery = queryOptions({
  queryKey: keys.loginWays,
  queryFn: ({ signal }) => ask(api.GET("/api/v1/auth/ways", { signal })),
  staleTime: 0,
});
