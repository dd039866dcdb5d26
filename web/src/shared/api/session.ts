// The session of this browser, which all of its tabs share: it ends and changes in all of them.
import type { QueryClient } from "@tanstack/react-query";
import { keys } from "./queries";
import type { Session } from "./types";

type News = "began" | "ended";

/** One for all: a second one in this tab would receive what this one sends. */
let channel: BroadcastChannel | null = null;

/** Note that a person logged in, in every tab. */
export function beginSession(client: QueryClient, session: Session): void {
  client.setQueryData(keys.session, session);
  channel?.postMessage("began" satisfies News);
}

/** Note that the session ended, in every tab; without one (a login that was refused) do nothing. */
export function endSession(client: QueryClient): void {
  if (!client.getQueryData(keys.session)) return;
  forget(client);
  channel?.postMessage("ended" satisfies News);
}

/** Follow what other tabs do, until the returned function is called. */
export function watchSession(client: QueryClient): () => void {
  channel = new BroadcastChannel("trainyard-session");
  channel.onmessage = ({ data }: MessageEvent<News>) => {
    if (data === "ended") forget(client);
    // The session may be another person's: all data is read again.
    else void client.resetQueries();
  };
  return () => {
    channel?.close();
    channel = null;
  };
}

/** Data that was read for one person is never shown to the next. */
function forget(client: QueryClient): void {
  client.setQueryData(keys.session, null);
  client.removeQueries({ predicate: ({ queryKey: [first] }) => first !== keys.session[0] });
}
