// Typed values, which requests use once typing pauses.
import { useEffect, useRef, useState } from "react";

/** Return a value once it has stayed the same for some milliseconds; compared by identity. */
export function useSettled<Value>(value: Value, milliseconds: number): Value {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), milliseconds);
    return () => clearTimeout(timer);
  }, [value, milliseconds]);
  return settled;
}

/**
 * Return a value that is shown while it is typed, and how to change it.
 *
 * `onChange` gets it once it has stayed the same for some milliseconds; another `value` replaces it.
 */
export function useDraft<Value>(
  value: Value,
  onChange: (draft: Value) => void,
  milliseconds: number,
): [draft: Value, setDraft: (draft: Value) => void] {
  const [draft, setDraft] = useState(value);
  const latest = useRef(onChange);
  latest.current = onChange; // events that draw the page again do not restart the timer
  // Typing goes on between a change and its return as `value`, which is no reason to replace it.
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
