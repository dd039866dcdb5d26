// Debounced input: requests use a typed value once typing pauses.
import { useEffect, useRef, useState } from "react";

/** Return a value once it has not changed for some milliseconds; compared by identity. */
export function useSettled<Value>(value: Value, milliseconds: number): Value {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), milliseconds);
    return () => clearTimeout(timer);
  }, [value, milliseconds]);
  return settled;
}

/**
 * Return the value to show during typing, and its setter.
 *
 * `onChange` gets the value once it has not changed for some milliseconds; a new `value` replaces it.
 */
export function useDraft<Value>(
  value: Value,
  onChange: (draft: Value) => void,
  milliseconds: number,
): [draft: Value, setDraft: (draft: Value) => void] {
  const [draft, setDraft] = useState(value);
  const latest = useRef(onChange);
  latest.current = onChange; // a render caused by events does not restart the timer
  // Typing continues until a change returns as `value`: the returned value must not replace newer input.
  const sent = useRef(value);
  useEffect(() => {
    if (value !== sent.current) setDraft(value);
    sent.current = value;
  }, [value]);
  useEffect(() => {
    if (draft === value) return;
    const timer = setTimeout(() => {
      sent.current = draft;
      latest.current(draft);
    }, milliseconds);
    return () => clearTimeout(timer);
  }, [draft, value, milliseconds]);
  return [draft, setDraft];
}
