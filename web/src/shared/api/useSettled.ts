// Typed values, which requests use once typing pauses.
import { useEffect, useState } from "react";

/** Return a value once it has stayed the same for some milliseconds; compared by identity. */
export function useSettled<Value>(value: Value, milliseconds: number): Value {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), milliseconds);
    return () => clearTimeout(timer);
  }, [value, milliseconds]);
  return settled;
}
