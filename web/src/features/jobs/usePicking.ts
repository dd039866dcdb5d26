// The jobs that were ticked to be compared; they stay ticked while the filter changes.
import { useCallback, useMemo, useState } from "react";
import { MOST_COMPARED } from "@/shared/api/queries";
import { useStream } from "@/shared/stream/useStream";
import { toggled } from "./filter";
import type { Picking } from "./JobsTable";

/** Return what is ticked, and how to untick all of it. */
export function usePicking(): [Picking, () => void] {
  const [picked, setPicked] = useState<readonly string[]>([]);
  const toggle = useCallback((id: string) => setPicked((ids) => toggled(ids, id)), []);
  const clear = useCallback(() => setPicked([]), []);
  useStream({
    event: ({ kind, job_id }) => {
      if (kind === "job_deleted") setPicked((ids) => ids.filter((id) => id !== job_id));
    },
  });
  const picking = useMemo(
    () => ({ picked, isFull: picked.length >= MOST_COMPARED, toggle }),
    [picked, toggle],
  );
  return [picking, clear];
}
