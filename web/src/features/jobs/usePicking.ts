// The jobs ticked for a comparison; ticks survive changes of the filter, and Back.
import { useCallback, useEffect, useMemo, useState } from "react";
import { MAX_COMPARED } from "@/shared/api/queries";
import { useStream } from "@/shared/stream/useStream";
import { PICKED } from "@/shared/url/pages";
import { usePageParams } from "@/shared/url/params";
import { toggled } from "./filter";
import type { Picking } from "./JobsTable";

/** Return the ticked jobs, and a function to untick all. */
export function usePicking(): [Picking, () => void] {
  const [kept, change] = usePageParams(PICKED);
  const [picked, setPicked] = useState<readonly string[]>(kept.picked);
  // The URL changes after the tick is rendered; Back restores it.
  useEffect(() => {
    if (picked.join() !== kept.picked.join()) change({ picked: [...picked] });
  }, [picked, kept, change]);
  const toggle = useCallback((id: string) => setPicked((ids) => toggled(ids, id)), []);
  const clear = useCallback(() => setPicked([]), []);
  useStream({
    event: ({ kind, job_id }) => {
      if (kind === "job_deleted") setPicked((ids) => ids.filter((id) => id !== job_id));
    },
  });
  const picking = useMemo(
    () => ({ picked, isFull: picked.length >= MAX_COMPARED, toggle }),
    [picked, toggle],
  );
  return [picking, clear];
}
