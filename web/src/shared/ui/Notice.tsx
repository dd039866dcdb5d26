// Empty and error states, with the next action.
import { useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useEffect, useState } from "react";
import { ApiError, isPassing, messageOf, withoutSeconds } from "@/shared/api/errors";
import { duration } from "@/shared/format/time";
import { stream } from "@/shared/stream/stream";
import { Button } from "./Button";
import { cx } from "./cx";
import { SkeletonLines } from "./Skeleton";
import "./Notice.css";

interface EmptyStateProps {
  title: string;
  /** What to do next. */
  children?: ReactNode;
}

export function EmptyState({ title, children }: EmptyStateProps) {
  return (
    <div className="notice">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

/** Whether a retry may succeed: a forbidden or absent resource stays so. */
function mayPass(error: unknown): boolean {
  return !(error instanceof ApiError) || ![403, 404, 410, 422].includes(error.status);
}

/** An error with the server's message, and a button for a retry if that may help. */
export function ErrorState({ error, onRetry }: { error: unknown; onRetry?: () => void }) {
  const problem = error instanceof ApiError ? error.problem : null;
  return (
    <div className="notice" role="alert">
      <h2>{problem?.title ?? "Error"}</h2>
      <p>{messageOf(error)}</p>
      {(problem?.errors?.length ?? 0) > 1 && <ProblemList error={error} />}
      {onRetry && mayPass(error) && <Button onClick={onRetry}>Try again</Button>}
      {problem?.request_id && <p className="notice-small">Request {problem.request_id}</p>}
    </div>
  );
}

interface AbsentProps {
  query: { error: unknown; refetch: () => unknown };
  /** Expected lines of text of the data. */
  lines?: number;
}

/** A placeholder for data that was not read yet: grey lines, or the error of the read. */
export function Absent({ query, lines }: AbsentProps) {
  if (!query.error) return <SkeletonLines lines={lines} />;
  return <ErrorState error={query.error} onRetry={() => void query.refetch()} />;
}

/** An error next to its control; that of an unreachable server disappears when the server returns. */
export function InlineError({ error, className }: { error: unknown; className?: string }) {
  const hasRecovered = useRecovery(error);
  if (error instanceof ApiError && error.status === 429) {
    return <TooMany key={error.message} error={error} className={className} />;
  }
  if (isPassing(error) && hasRecovered) {
    return (
      <p className={cx("inline-error inline-recovered", className)} role="status">
        The server answers again. Try again.
      </p>
    );
  }
  return (
    <p className={cx("inline-error", className)} role="alert">
      {messageOf(error)}
    </p>
  );
}

/** A refusal for some seconds, which are counted down. */
function TooMany({ error, className }: { error: ApiError; className?: string }) {
  const left = useSecondsLeft(error.retrySeconds ?? 0);
  return (
    <div className={cx("inline-error", className)}>
      <p role="alert">{sentence(withoutSeconds(error.message))}</p>
      <p role="timer">{left > 0 ? `Try again in ${duration(left)}.` : "Try again now."}</p>
    </div>
  );
}

function sentence(words: string): string {
  return `${words.charAt(0).toUpperCase()}${words.slice(1)}${words.endsWith(".") ? "" : "."}`;
}

const SECOND = 1_000;

/** Return the whole seconds that are left of some seconds, from the first render on. */
function useSecondsLeft(seconds: number): number {
  const [end] = useState(() => Date.now() + seconds * SECOND);
  const [left, setLeft] = useState(seconds);
  const isOver = left <= 0;
  useEffect(() => {
    if (isOver) return;
    const timer = setInterval(
      () => setLeft(Math.max(0, Math.ceil((end - Date.now()) / SECOND))),
      SECOND,
    );
    return () => clearInterval(timer);
  }, [end, isOver]);
  return left;
}

/** Whether any read succeeded, or the event stream opened, since an error appeared. */
function useRecovery(error: unknown): boolean {
  const client = useQueryClient();
  const [recovered, setRecovered] = useState<unknown>(null);
  useEffect(
    () =>
      client.getQueryCache().subscribe((event) => {
        if (event.type !== "updated" || event.action.type !== "success") return;
        if (!event.action.manual) setRecovered(error);
      }),
    [client, error],
  );
  useEffect(
    () => stream.watchStatus(() => stream.status === "live" && setRecovered(error)),
    [error],
  );
  return recovered === error;
}

function ProblemList({ error }: { error: unknown }) {
  if (!(error instanceof ApiError)) return null;
  return (
    <ul className="notice-problems">
      {error.errors.map(({ pointer, detail }) => (
        <li key={pointer + detail}>
          <code>{pointer || "/"}</code> {detail}
        </li>
      ))}
    </ul>
  );
}
