import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { EventStream } from "./stream";

/** Stands for the browser's EventSource. */
class FakeSource {
  static readonly opened: FakeSource[] = [];
  readonly CLOSED = 2;
  readyState = 0;
  onopen: (() => void) | null = null;
  onmessage: ((message: { data: string }) => void) | null = null;
  onerror: (() => void) | null = null;
  private reset: (() => void) | null = null;

  constructor() {
    FakeSource.opened.push(this);
  }

  addEventListener(_: "reset", listener: () => void): void {
    this.reset = listener;
  }

  close(): void {
    this.readyState = this.CLOSED;
  }

  sayReset(): void {
    this.reset?.();
  }
}

const open = () => new FakeSource() as unknown as EventSource;
const newest = () => FakeSource.opened.at(-1) as FakeSource;

beforeEach(() => {
  vi.useFakeTimers();
  FakeSource.opened.length = 0;
});

afterEach(() => vi.useRealTimers());

describe("the stream", () => {
  it("is opened once for all listeners, and closed after the last one", () => {
    const stream = new EventStream("/s", open);
    const stops = [stream.subscribe({}), stream.subscribe({})];
    expect(FakeSource.opened).toHaveLength(1);
    stops[0]?.();
    expect(newest().readyState).toBe(0);
    stops[1]?.();
    expect(newest().readyState).toBe(2);
  });

  it("passes events on, and skips frames that only move the last id", () => {
    const event = vi.fn();
    new EventStream("/s", open).subscribe({ event });
    newest().onmessage?.({ data: "" });
    newest().onmessage?.({ data: '{"kind":"metrics"}' });
    expect(event.mock.calls).toEqual([[{ kind: "metrics" }]]);
  });

  it("resets when it opens and when the server sends a reset, not when the browser resumed", () => {
    const reset = vi.fn();
    const stream = new EventStream("/s", open);
    stream.subscribe({ reset });
    newest().onopen?.();
    expect(reset).toHaveBeenCalledTimes(1);
    newest().onerror?.();
    expect(stream.status).toBe("lost");
    newest().onopen?.();
    expect(stream.status).toBe("live");
    expect(reset).toHaveBeenCalledTimes(1);
    newest().sayReset();
    expect(reset).toHaveBeenCalledTimes(2);
  });

  it("opens another source after a refusal, with growing pauses", () => {
    new EventStream("/s", open).subscribe({});
    for (const pause of [1_000, 2_000, 4_000]) {
      newest().close();
      newest().onerror?.();
      const before = FakeSource.opened.length;
      vi.advanceTimersByTime(pause - 1);
      expect(FakeSource.opened).toHaveLength(before);
      vi.advanceTimersByTime(1);
      expect(FakeSource.opened).toHaveLength(before + 1);
    }
  });

  it("notifies watchers of its status until they leave", () => {
    const stream = new EventStream("/s", open);
    const changed = vi.fn();
    const leave = stream.watchStatus(changed);
    stream.subscribe({});
    newest().onopen?.();
    leave();
    newest().onerror?.();
    expect(changed).toHaveBeenCalledTimes(1);
  });
});
