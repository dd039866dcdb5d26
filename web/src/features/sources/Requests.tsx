// The requests of a source, open ones first: the engine's reason, times, joined nodes, findings.
import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { Link } from "react-router";
import { nodeRequestsQuery } from "@/shared/api/queries";
import type { NodeRequest } from "@/shared/api/types";
import { plural } from "@/shared/format/numbers";
import { moment } from "@/shared/format/time";
import { Badge } from "@/shared/ui/Badge";
import { Button } from "@/shared/ui/Button";
import { cx } from "@/shared/ui/cx";
import { Absent } from "@/shared/ui/Notice";
import { RelativeTime } from "@/shared/ui/RelativeTime";
import { SOURCES } from "@/shared/url/pages";
import { usePageParams } from "@/shared/url/params";
import { LABELS, RequestDialog } from "./RequestDialog";
import { isUnknown, timeOf, toneOf, type Verb, verbsOf } from "./state";

const REFRESH_MILLISECONDS = 5_000;

interface RequestsProps {
  source: string;
  /** Why the caller may not cancel or end requests. */
  barrier: string | null;
}

export function Requests({ source, barrier }: RequestsProps) {
  const [asked, setAsked] = useState<{ request: NodeRequest; verb: Verb } | null>(null);
  const requests = useQuery({
    ...nodeRequestsQuery(source),
    refetchInterval: REFRESH_MILLISECONDS,
  });
  if (!requests.data) return <Absent query={requests} lines={2} />;
  if (requests.data.length === 0) return <p className="muted">No requests.</p>;
  return (
    <>
      <ul className="source-requests" aria-label={`Requests of ${source}`}>
        {requests.data.map((request) => (
          <Item
            key={request.id}
            request={request}
            barrier={barrier}
            onVerb={(verb) => setAsked({ request, verb })}
          />
        ))}
      </ul>
      {asked && <RequestDialog {...asked} onClose={() => setAsked(null)} />}
    </>
  );
}

interface ItemProps {
  request: NodeRequest;
  barrier: string | null;
  onVerb: (verb: Verb) => void;
}

function Item({ request, barrier, onVerb }: ItemProps) {
  const verbs = verbsOf(request);
  const [{ request: chosen }] = usePageParams(SOURCES);
  const item = useRef<HTMLLIElement>(null);
  const isChosen = chosen === request.id;
  useEffect(() => {
    if (isChosen) item.current?.scrollIntoView({ block: "center" });
  }, [isChosen]);
  return (
    <li
      ref={item}
      className={cx("source-request", isChosen && "source-chosen")}
      aria-current={isChosen || undefined}
      data-request={request.id}
    >
      <div className="source-request-head">
        <Badge tone={toneOf(request)} title={request.ref ? `Job ${request.ref}` : "No job yet"}>
          {request.state}
        </Badge>
        <span className="source-for">{purposeOf(request)}</span>
        <Time request={request} />
        {verbs.length > 0 && (
          <span className="source-actions">
            {verbs.map((verb) => (
              <Button
                key={verb}
                small
                barrier={verb === "explain" ? null : barrier}
                aria-label={`${LABELS[verb]} request ${request.id}`}
                onClick={() => onVerb(verb)}
              >
                {LABELS[verb]}
              </Button>
            ))}
          </span>
        )}
      </div>
      {isUnknown(request) && (
        <p className="source-unknown">
          The engine does not describe job {request.ref}, which proves nothing: it may still run.
        </p>
      )}
      {request.reason && <p className="source-reason">{request.reason}</p>}
      <Details request={request} />
    </li>
  );
}

function purposeOf({ nodes, purpose, caused_by: cause }: NodeRequest): string {
  return purpose === "check" ? `check, by ${cause}` : `${plural(nodes, "node")} for ${cause}`;
}

function Time({ request }: { request: NodeRequest }) {
  const time = timeOf(request);
  if (time === null) return null;
  return (
    <span className="muted small">
      {time.word} {time.isPast ? <RelativeTime at={time.at} isSentence /> : moment(time.at)}
    </span>
  );
}

/** The joined nodes, and the findings of a check. */
function Details({ request }: { request: NodeRequest }) {
  const { joined, results, state } = request;
  return (
    <>
      {joined.length > 0 && (
        <p className="source-nodes small mono">
          {joined.map((node) =>
            state === "ended" ? (
              <span key={node}>{node}</span>
            ) : (
              <Link key={node} to={`/nodes/${encodeURIComponent(node)}`}>
                {node}
              </Link>
            ),
          )}
        </p>
      )}
      {results.length > 0 && (
        <ul className="source-findings small" aria-label="Findings">
          {results.map(({ name, passed, detail }) => (
            <li key={name}>
              <Badge tone={passed ? "ok" : "bad"}>
                {passed ? "✓" : "✗"} {name}
              </Badge>
              <span className="source-reason">{detail}</span>
            </li>
          ))}
        </ul>
      )}
    </>
  );
}
