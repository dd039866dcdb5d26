// The one HTTP client, typed by the server's OpenAPI document; the session is a cookie.
import createClient from "openapi-fetch";
import { ApiError, problemOf, retrySecondsOf, UnreachableError } from "./errors";
import type { paths } from "./schema";

export const api = createClient<paths>({
  credentials: "same-origin",
  // Several query values of one name: `state=running&state=queued`.
  querySerializer: { array: { style: "form", explode: true } },
});

type Answer<Data> = { data?: Data; error?: unknown; response: Response };

/**
 * Return the body of the server's answer.
 *
 * Throws `ApiError` when it refused, `UnreachableError` when it did not answer.
 */
export async function ask<Data>(asked: Promise<Answer<Data>>): Promise<Data> {
  let answer: Answer<Data>;
  try {
    answer = await asked;
  } catch (cause) {
    if (cause instanceof DOMException && cause.name === "AbortError") throw cause;
    throw new UnreachableError(cause);
  }
  if (!answer.response.ok) {
    throw new ApiError(problemOf(answer.error, answer.response), retrySecondsOf(answer.response));
  }
  return answer.data as Data;
}
