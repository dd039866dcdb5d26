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
import { problemsOf, readNumber } from "./problems";

const TYPING_MILLISECONDS = 250;

/** `gone`: why the job cannot be resumed any more, while the dialog still shows what was chosen. */
export function useResume(job: Job, onClose: () => void, gone: string | null) {
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
  const typed = useMemo(() => ({ microBatchSize, steps }), [microBatchSize, steps]);
  const settled = useSettled(typed, TYPING_MILLISECONDS);
  const { numbers, wrong } = readNumbers(settled);
  const choice = row && numbers ? { row, checkpointId: view.get("checkpoint"), ...numbers } : null;
  const launch = useMutation({
    mutationFn: (chosen: Choice) => postResume(job.id, requestOf(job, chosen)),
    onSuccess: (reply) => {
      onClose(); // first: the job that comes back cannot be resumed again
      client.setQueryData(keys.jobView(job.id), reply.job);
      void client.invalidateQueries({ queryKey: keys.job(job.id) });
      view.set({ do: null, checkpoint: null, aim: null, tab: null, from: null, to: null });
    },
  });
  // A launched job is queued and refuses a preview; its own events would ask for one again.
  const isLaunched = launch.isPending || launch.isSuccess;
  const preview = useQuery({
    ...previewQuery(job.id, choice ? requestOf(job, choice) : {}),
    enabled: choice !== null && !isLaunched && gone === null,
  });
  // A refused launch says it already; what is chosen next takes that refusal away.
  const problems = problemsOf(preview.isFetching || launch.isError ? null : preview.error);
  const { reset } = launch;
  // biome-ignore lint/correctness/useExhaustiveDependencies: whatever is chosen anew
  useEffect(() => {
    if (gone === null) reset();
  }, [reset, gone, row?.key, typed, view.get("checkpoint")]);
  Object.assign(problems.at, wrong);
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
    problems,
    /** Whether what is shown belongs to what is chosen. */
    isCurrent:
      preview.isSuccess && !preview.isPlaceholderData && choice !== null && typed === settled,
    launch,
  };
}

export type Resume = ReturnType<typeof useResume>;

interface Numbers<Value> {
  microBatchSize: Value;
  steps: Value;
}

/** Return what was typed as numbers; null where one of them is none, and what is wrong there. */
function readNumbers(typed: Numbers<string>): {
  numbers: Numbers<number | null> | null;
  wrong: Partial<Numbers<string>>;
} {
  const [size, steps] = [readNumber(typed.microBatchSize), readNumber(typed.steps)];
  if (size.problem === undefined && steps.problem === undefined) {
    return { numbers: { microBatchSize: size.value, steps: steps.value }, wrong: {} };
  }
  const wrong: Partial<Numbers<string>> = {};
  if (size.problem !== undefined) wrong.microBatchSize = size.problem;
  if (steps.problem !== undefined) wrong.steps = steps.problem;
  return { numbers: null, wrong };
}

/** Return a value once it has stayed for a while. */
function useSettled<Value>(value: Value, milliseconds: number): Value {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), milliseconds);
    return () => clearTimeout(timer);
  }, [value, milliseconds]);
  return settled;
}
