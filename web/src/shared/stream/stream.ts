// The event stream of a tab: it reconnects by itself, and resets its listeners after missed events.
import type { StreamItem } from "@/shared/api/types";

export type StreamStatus = "connecting" | "live" | "lost";

export interface StreamListener {
  /** Called for each event, in order. */
  event?: (event: StreamItem) => void;
  /** Called when events were lost: all visible data must be read again. */
  reset?: () => void;
}

const FIRST_PAUSE = 1_000;
const LONGEST_PAUSE = 15_000;

/** Opens an EventSource while there are listeners, and passes every event to all of them. */
export class EventStream {
  private source: EventSource | null = null;
  private retry: ReturnType<typeof setTimeout> | null = null;
  private pause = FIRST_PAUSE;
  private current: StreamStatus = "connecting";
  private readonly listeners = new Set<StreamListener>();
  private readonly watchers = new Set<() => void>();

  constructor(
    private readonly url: string,
    private readonly open: (url: string) => EventSource = (to) => new EventSource(to),
  ) {}

  get status(): StreamStatus {
    return this.current;
  }

  /** Call `changed` whenever `status` changes, until the returned function is called. */
  watchStatus = (changed: () => void): (() => void) => {
    this.watchers.add(changed);
    return () => this.watchers.delete(changed);
  };

  /** Pass events to a listener until the returned function is called. */
  subscribe(listener: StreamListener): () => void {
    this.listeners.add(listener);
    if (this.listeners.size === 1) this.connect();
    return () => {
      this.listeners.delete(listener);
      if (this.listeners.size === 0) this.close();
    };
  }

  private connect(): void {
    const source = this.open(this.url);
    this.source = source;
    source.onopen = () => {
      this.pause = FIRST_PAUSE;
      this.setStatus("live");
      // A new EventSource has no last id: data that was read before it opened may be stale.
      this.reset();
      source.onopen = () => this.setStatus("live");
    };
    source.onmessage = (message: MessageEvent<string>) => {
      if (message.data) this.hand(JSON.parse(message.data) as StreamItem);
    };
    source.addEventListener("reset", () => this.reset());
    source.onerror = () => this.failed(source);
  }

  /** The browser reconnects by itself after a broken connection, but not after a refusal. */
  private failed(source: EventSource): void {
    this.setStatus("lost");
    if (source.readyState !== source.CLOSED) return;
    this.retry = setTimeout(() => this.connect(), this.pause);
    this.pause = Math.min(this.pause * 2, LONGEST_PAUSE);
  }

  private close(): void {
    if (this.retry !== null) clearTimeout(this.retry);
    this.source?.close();
    this.source = null;
    this.retry = null;
    this.setStatus("connecting");
  }

  private hand(event: StreamItem): void {
    for (const listener of this.listeners) listener.event?.(event);
  }

  private reset(): void {
    for (const listener of this.listeners) listener.reset?.();
  }

  private setStatus(status: StreamStatus): void {
    if (status === this.current) return;
    this.current = status;
    for (const changed of this.watchers) changed();
  }
}

export const stream = new EventStream("/api/v1/stream");
