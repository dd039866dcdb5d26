// Live events in components.
import { useEffect, useRef, useSyncExternalStore } from "react";
import { type StreamListener, type StreamStatus, stream } from "./stream";

/** Pass live events to a listener while the component is mounted; it need not be memoized. */
export function useStream(listener: StreamListener): void {
  const latest = useRef(listener);
  useEffect(() => {
    latest.current = listener;
  });
  useEffect(
    () =>
      stream.subscribe({
        event: (event) => latest.current.event?.(event),
        reset: () => latest.current.reset?.(),
      }),
    [],
  );
}

/** Return whether events arrive. */
export function useStreamStatus(): StreamStatus {
  return useSyncExternalStore(stream.watchStatus, () => stream.status);
}
