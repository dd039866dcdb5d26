// The state of the resume dialog: what there is to choose from, what is chosen, what it would do.
import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useMemo, useState } from "react";
import { retryInterval } from "@/shared/api/errors";
import { keys } from "@/shared/api/queries";
import type { Job } from "@/shared/api/types";
import { checkpointsQuery, resumeOptionsQuery } from "@/shared/job/api";
import { useView } from "@/shared/job/view";
import { postResume, previewQuery } from "./api";
import {
  type Choice,
  firstRow,
  proposedMicroBatchSize,
  type Row,
  requestOf,
  rowsOf,
} from "./choice";
import { problemsOf, readNumber } from "./problems";

const TYPING_MILLISECONDS = 250;
const LIVE_MILLISECONDS = 3_000;

/** As what the dialog was opened. */
export interface Opened {
  /** It stays that whatever becomes of the job. */
  verb: "resume" | "resize";
  onClose: () => void;
  /** Why neither is possible any more, while the dialog still shows what was chosen. */
  gone: string | null;
}

export function useResume(job: Job, { verb: asked, onClose, gone }: Opened) {
  const view = useView();
  const aim = view.aim;
  const isResize = asked === "resize";
  const options = useQuery(resumeOptionsQuery(job.id));
  const checkpoints = useInfiniteQuery(checkpointsQuery(job.id));
  const rows = useMemo(
    () => (options.data ? rowsOf(options.data, job.current_attempt?.layout_name ?? null) : []),
    [options.data, job.current_attempt],
  );
  const [rowKey, setRowKey] = useState<string | null>(null);
  const [typedSize, setMicroBatchSize] = useState<string | null>(null);
  const [steps, setSteps] = useState("");
  const row = rows.find(({ key }) => key === rowKey) ?? firstRow(rows, aim, isResize);
  const microBatchSize = typedSize ?? String(proposedMicroBatchSize(row, aim) ?? "");
  const typed = useMemo(() => ({ microBatchSize, steps }), [microBatchSize, steps]);
  const settled = useSettled(typed, TYPING_MILLISECONDS);
  const { numbers, wrong } = readNumbers(settled);
  const [allowCodeChange, setAllowCodeChange] = useState(false);
  const choice = choiceOf(row, numbers, view.checkpoint, allowCodeChange);
  const isSame = isResize && isWhatRuns(choice);
  const launch = useLaunch(job, onClose);
  // A launched job is queued and refuses a preview; its own events would ask for one again.
  const isLaunched = launch.isPending || launch.isSuccess;
  const preview = useQuery({
    ...previewQuery(job.id, choice ? requestOf(job, choice) : {}),
    enabled: choice !== null && !isLaunched && gone === null && !isSame,
    refetchInterval: refreshOf(isResize),
  });
  // A refused launch says it already; what is chosen next takes that refusal away.
  const problems = problemsOf(preview.isFetching || launch.isError ? null : preview.error);
  const { reset } = launch;
  // biome-ignore lint/correctness/useExhaustiveDependencies: whatever is chosen anew
  useEffect(() => {
    if (gone === null) reset();
  }, [reset, gone, row?.key, typed, view.checkpoint]);
  Object.assign(problems.at, wrong);
  return {
    aim,
    isResize,
    options,
    rows,
    row,
    choice,
    chooseRow: (chosen: Row) => setRowKey(chosen.key),
    checkpoints: checkpoints.data?.pages.flatMap((page) => page.items) ?? [],
    chooseCheckpoint: (id: string | null) => view.change({ checkpoint: id }),
    microBatchSize,
    setMicroBatchSize,
    steps,
    setSteps,
    allowCodeChange,
    setAllowCodeChange,
    preview,
    problems,
    /** Whether a resize would change nothing. */
    isSame,
    /** Whether what is shown belongs to what is chosen. */
    isCurrent:
      !isSame &&
      preview.isSuccess &&
      !preview.isPlaceholderData &&
      choice !== null &&
      typed === settled,
    launch,
  };
}

function useLaunch(job: Job, onClose: () => void) {
  const view = useView();
  const client = useQueryClient();
  return useMutation({
    mutationFn: (chosen: Choice) => postResume(job.id, requestOf(job, chosen)),
    onSuccess: (reply) => {
      onClose(); // first: the job that comes back cannot be resumed again
      client.setQueryData(keys.jobView(job.id), reply.job);
      void client.invalidateQueries({ queryKey: keys.job(job.id) });
      view.change({ dialog: null, checkpoint: null, aim: null, tab: "charts", range: null });
    },
  });
}

export type Resume = ReturnType<typeof useResume>;

/** While a resize is chosen the attempt goes on. */
function refreshOf(isResize: boolean): number | typeof retryInterval {
  return isResize ? LIVE_MILLISECONDS : retryInterval;
}

function isWhatRuns(choice: Choice | null): boolean {
  if (choice === null) return false;
  const { row, checkpointId, microBatchSize, steps } = choice;
  const named = [checkpointId, microBatchSize, steps];
  return row.isBefore && named.every((value) => value === null);
}

function choiceOf(
  row: Row | undefined,
  numbers: Numbers<number | null> | null,
  checkpointId: string | null,
  allowCodeChange: boolean,
): Choice | null {
  return row && numbers ? { row, checkpointId, allowCodeChange, ...numbers } : null;
}

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
