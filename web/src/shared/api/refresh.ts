// Reads queries again after events, at most one read at a time for each key.
import { hashKey, type QueryClient, type QueryKey, useQueryClient } from "@tanstack/react-query";
import { useMemo } from "react";

/** Default pause between two reads of one key, in milliseconds: events may come by the hundred. */
export const REFRESH_PAUSE = 500;

/**
 * Refreshes queries after events. The next event never cancels a read that an event started: under
 * steady events none would complete. Events during a read lead to one more read after it.
 */
export class Refresher {
  /** Keys that are being read, and whether another read must follow. */
  private readonly reading = new Map<string, boolean>();

  constructor(
    private readonly client: QueryClient,
    private readonly pause = REFRESH_PAUSE,
  ) {}

  /** Read the visible queries under a key again, and mark the others as stale. */
  refresh(queryKey: QueryKey): void {
    const hash = hashKey(queryKey);
    const isReading = this.reading.has(hash);
    this.reading.set(hash, isReading);
    if (!isReading) void this.read(queryKey, hash);
  }

  private async read(queryKey: QueryKey, hash: string): Promise<void> {
    // A read that began before the event may miss it: only that read is cancelled.
    await this.client.invalidateQueries({ queryKey });
    await new Promise((done) => setTimeout(done, this.pause));
    const isBehind = this.reading.get(hash);
    this.reading.delete(hash);
    if (isBehind) this.refresh(queryKey);
  }
}

/** Return a refresher that lives as long as the component. */
export function useRefresher(pause?: number): Refresher {
  const client = useQueryClient();
  return useMemo(() => new Refresher(client, pause), [client, pause]);
}
