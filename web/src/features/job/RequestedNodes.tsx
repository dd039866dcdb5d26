// The node requests that a waiting job caused, each with the engine's reason.
import { useQueries, useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { nodeRequestsQuery, sourcesQuery } from "@/shared/api/queries";
import type { Job } from "@/shared/api/types";
import { plural } from "@/shared/format/numbers";
import { nodeRequestPath } from "@/shared/url/pages";

const REFRESH_MILLISECONDS = 10_000;

export function RequestedNodes({ job }: { job: Job }) {
  const sources = useQuery({ ...sourcesQuery, refetchInterval: REFRESH_MILLISECONDS });
  const requests = useQueries({
    queries: (sources.data ?? []).map(({ name }) => ({
      ...nodeRequestsQuery(name),
      refetchInterval: REFRESH_MILLISECONDS,
    })),
    combine: (found) => found.flatMap(({ data }) => data ?? []),
  });
  // A request names the job that caused it; another job may take its nodes.
  const own = requests.filter(
    ({ caused_by: cause, purpose, state }) =>
      cause === job.name && purpose === "nodes" && (state === "wanted" || state === "pending"),
  );
  return own.map(({ id, nodes, source, reason }) => (
    <p key={id}>
      <Link to={nodeRequestPath(id)}>
        {plural(nodes, "node")} of {source}
      </Link>{" "}
      requested
      {reason && `: ${reason}`}
    </p>
  ));
}
