// The state of the resume dialog: what there is to choose from, what is chosen, what it would do.
import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useMemo, useState } from "react";
import { keys } from "@/shared/api/queries";
import type { Job } from "@/shared/api/types";
import { checkpointsQuery, postResume, previewQuery, resumeOptionsQuery } from "../api";
import { useView } from "../view";
import {
  aimIn,
  type Choice,
  firstRow,
  proposedMicroBatchSize,
  type Row,
  requestOf,
  rowsOf,
} from "./choice";

const TYPING_MILLISECONDS = 250;

export function useResume(job: Job, onClose: () => void) {
  const view = useView();
  const client = useQueryClient();
  const aim = aimIn(view.get("aim"));
  const options = useQuery(resumeOptionsQuery(job.id));
  const checkpoints = useInfiniteQuery(checkpointsQuery(job.id));
  const rows = useMemo(
    () => (options.data ? rowsOf(options.data, job.current_attempt?.layout ?? null) : []),
    [options.data, job.current_attempt],
  );
  const [rowKey, setRowKey] = useState<string | null>(null);
  const [typedSize, setMicroBatchSize] = useState<string | null>(null);
  const [steps, setSteps] = useState("");
  const row = rows.find(({ key }) => key === rowKey) ?? firstRow(rows, aim);
  const microBatchSize = typedSize ?? String(proposedMicroBatchSize(row, aim) ?? "");
  const typed = useSettled(`${microBatchSize}/${steps}`, TYPING_MILLISECONDS);
  const choice = row ? choiceOf(row, view.get("checkpoint"), typed) : null;
  const launch = useMutation({
    mutationFn: (chosen: Choice) => postResume(job.id, requestOf(job, chosen)),
    onSuccess: (reply) => {
      client.setQueryData(keys.jobView(job.id), reply.job);
      void client.invalidateQueries({ queryKey: keys.job(job.id) });
      onClose();
      view.set({ do: null, checkpoint: null, aim: null, tab: null, from: null, to: null });
    },
  });
  // A launched job is queued and refuses a preview; its own events would ask for one again.
  const isLaunched = launch.isPending || launch.isSuccess;
  const preview = useQuery({
    ...previewQuery(job.id, choice ? requestOf(job, choice) : {}),
    enabled: choice !== null && !isLaunched,
  });
  return {
    aim,
    options,
    rows,
    row,
    choice,
    chooseRow: (chosen: Row) => setRowKey(chosen.key),
    checkpoints: checkpoints.data?.pages.flatMap((page) => page.items) ?? [],
    chooseCheckpoint: (id: string | null) => view.set({ checkpoint: id }),
    microBatchSize,
    setMicroBatchSize,
    steps,
    setSteps,
    preview,
    /** Whether what is shown belongs to what is chosen. */
    isCurrent:
      preview.isSuccess && !preview.isPlaceholderData && typed === `${microBatchSize}/${steps}`,
    launch,
  };
}

export type Resume = ReturnType<typeof useResume>;

function choiceOf(row: Row, checkpointId: string | null, typed: string): Choice {
  const [microBatchSize = "", steps = ""] = typed.split("/");
  return {
    row,
    checkpointId,
    microBatchSize: wholeNumber(microBatchSize),
    steps: wholeNumber(steps),
  };
}

function wholeNumber(text: string): number | null {
  return /^[1-9]\d{0,9}$/.test(text) ? Number(text) : null;
}

/** Return a value once it has stayed for a while. */
function useSettled(value: string, milliseconds: number): string {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), milliseconds);
    return () => clearTimeout(timer);
  }, [value, milliseconds]);
  return settled;
}
