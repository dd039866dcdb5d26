// Refusals of the server as one error type, and the message shown for any error.
import type { Problem, ProblemDetails } from "./types";

/** A refusal: the problem document (RFC 9457) that the server answered with. */
export class ApiError extends Error {
  override name = "ApiError";

  constructor(
    readonly problem: ProblemDetails,
    /** Seconds until the same request may succeed, if the server names them. */
    readonly retrySeconds: number | null = null,
  ) {
    super(problem.detail || problem.title);
  }

  get status(): number {
    return this.problem.status;
  }

  /** Each invalid field, by JSON pointer. */
  get errors(): readonly Problem[] {
    return this.problem.errors ?? [];
  }
}

/** `parallelism.tp: does not divide` from a problem of a request that wraps a spec in `wrapper`. */
export function problemText({ pointer, detail }: Problem, wrapper: string): string {
  const path = pointer.replace(`/${wrapper}/`, "/").slice(1).replaceAll("/", ".");
  return path === "" ? detail : `${path}: ${detail}`;
}

/** No answer: server or network is down. */
export class UnreachableError extends Error {
  override name = "UnreachableError";

  constructor(cause: unknown) {
    super("The server does not answer. It may be restarting, or the connection may be lost.", {
      cause,
    });
  }
}

/** Milliseconds until a read is retried after a transient failure. */
const RETRY_PAUSE = 5_000;

/** Whether an error is transient: an unreachable or overloaded server recovers, a refusal stays. */
export function isPassing(error: unknown): boolean {
  return error instanceof UnreachableError || (error instanceof ApiError && error.status >= 500);
}

/** Return the milliseconds until a failed read is retried, so that its error disappears with its cause. */
export function retryInterval({ state }: { state: { error: unknown } }): number | false {
  return isPassing(state.error) ? RETRY_PAUSE : false;
}

/** Return the problem in an answer's body, or a substitute for the answer of a proxy. */
export function problemOf(body: unknown, response: Response): ProblemDetails {
  if (isProblem(body)) return body;
  return {
    type: "about:blank",
    title: response.statusText || `HTTP ${response.status}`,
    status: response.status,
    detail: `The server answered ${response.status} without a reason.`,
    errors: [],
    request_id: response.headers.get("x-request-id") ?? "",
  };
}

/** Return the seconds of the header `Retry-After`; null without them. */
export function retrySecondsOf(response: Response): number | null {
  const given = response.headers.get("retry-after");
  return given !== null && /^\d{1,9}$/.test(given) ? Number(given) : null;
}

/** Return the detail of the problem at a JSON pointer of the request. */
export function errorAt(error: unknown, pointer: string): string | undefined {
  if (!(error instanceof ApiError)) return undefined;
  return error.errors.find((problem) => problem.pointer === pointer)?.detail;
}

/** Return the message of a refusal for some seconds, without the seconds, which pass. */
export function withoutSeconds(message: string): string {
  return message.replace(/; try again in \d+ seconds$/, "");
}

/** Return an error for the whole form: null if fields of the form show every problem of it. */
export function errorBeyond(error: unknown, pointers: readonly string[]): unknown {
  if (!(error instanceof ApiError) || error.errors.length === 0) return error;
  return error.errors.every(({ pointer }) => pointers.includes(pointer)) ? null : error;
}

export function isUnauthenticated(error: unknown): boolean {
  return error instanceof ApiError && error.status === 401;
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

function isProblem(body: unknown): body is ProblemDetails {
  return (
    typeof body === "object" &&
    body !== null &&
    "title" in body &&
    "status" in body &&
    "errors" in body &&
    Array.isArray(body.errors)
  );
}
