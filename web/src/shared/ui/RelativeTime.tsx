// Ages that one clock updates while the page is open.
import { useSyncExternalStore } from "react";
import { age, duration, moment, secondsBetween } from "@/shared/format/time";

const TICK_MILLISECONDS = 5_000;
const listeners = new Set<() => void>();
let now = Date.now();
let timer: ReturnType<typeof setInterval> | null = null;

function watch(changed: () => void): () => void {
  listeners.add(changed);
  timer ??= setInterval(tick, TICK_MILLISECONDS);
  return () => {
    listeners.delete(changed);
    if (listeners.size > 0 || timer === null) return;
    clearInterval(timer);
    timer = null;
  };
}

function tick(): void {
  now = Date.now();
  for (const changed of listeners) changed();
}

/** Return the present time in milliseconds, at most five seconds old. */
export function useNow(): number {
  return useSyncExternalStore(watch, () => {
    if (Date.now() - now > TICK_MILLISECONDS) now = Date.now();
    return now;
  });
}

/** How long ago a moment was, `3 min`, in a sentence `3 min ago`; its tooltip is the moment. */
export function RelativeTime({ at, isSentence }: { at: string; isSentence?: boolean }) {
  const words = age(Math.max(0, (useNow() - Date.parse(at)) / 1000));
  return (
    <time dateTime={at} title={moment(at)}>
      {isSentence ? (words === "now" ? "just now" : `${words} ago`) : words}
    </time>
  );
}

/** How long something took, or has taken so far. */
export function Elapsed({ from, to }: { from: string; to?: string | null }) {
  const present = useNow();
  const seconds = to ? secondsBetween(from, to) : (present - Date.parse(from)) / 1000;
  return <span>{duration(Math.max(0, seconds))}</span>;
}
