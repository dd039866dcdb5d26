// The session of this browser, shared by its tabs: it ends and changes in all of them.
import type { QueryClient } from "@tanstack/react-query";
import { keys } from "./queries";
import type { Session } from "./types";

/**
 * Meta of requests that send a typed password, a token or a code: the server refuses a wrong one
 * with 401, which does not end the session.
 */
export const SENDS_SECRET = { sendsSecret: true } as const;

type News = "began" | "ended";

/** One channel per tab: a second one in this tab would receive the messages of the first. */
let channel: BroadcastChannel | null = null;

/** Record a login in every tab. */
export function beginSession(client: QueryClient, session: Session): void {
  client.setQueryData(keys.session, session);
  channel?.postMessage("began" satisfies News);
}

/** Record the end of the session in every tab; do nothing without one (a refused login). */
export function endSession(client: QueryClient): void {
  if (!client.getQueryData(keys.session)) return;
  forget(client);
  channel?.postMessage("ended" satisfies News);
}

/** Follow logins and logouts of other tabs, until the returned function is called. */
export function watchSession(client: QueryClient): () => void {
  channel = new BroadcastChannel("trainyard-session");
  channel.onmessage = ({ data }: MessageEvent<News>) => {
    if (data === "ended") forget(client);
    // Another person may have logged in: read all data again.
    else void client.resetQueries();
  };
  return () => {
    channel?.close();
    channel = null;
  };
}

/** Drop all data: data that was read for one person is never shown to the next. */
function forget(client: QueryClient): void {
  client.setQueryData(keys.session, null);
  client.removeQueries({ predicate: ({ queryKey: [first] }) => first !== keys.session[0] });
}
