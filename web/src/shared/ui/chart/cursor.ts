// One cursor for several charts: all of them show their values at its step.
import { useSyncExternalStore } from "react";

export interface CursorPlace {
  step: number;
  /** Id of the chart with the pointer or the keyboard focus. */
  source: string;
}

export class ChartCursor {
  private current: CursorPlace | null = null;
  private readonly listeners = new Set<() => void>();

  get place(): CursorPlace | null {
    return this.current;
  }

  move(place: CursorPlace | null): void {
    const { current } = this;
    if (current?.step === place?.step && current?.source === place?.source) return;
    this.current = place;
    for (const changed of this.listeners) changed();
  }

  watch = (changed: () => void): (() => void) => {
    this.listeners.add(changed);
    return () => this.listeners.delete(changed);
  };
}

export function useCursorPlace(cursor: ChartCursor): CursorPlace | null {
  return useSyncExternalStore(cursor.watch, () => cursor.place);
}
