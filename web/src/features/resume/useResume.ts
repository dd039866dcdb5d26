// A resume in the dialog: the choice, its request, its preview, and the launch.
import {
  keepPreviousData,
  queryOptions,
  useInfiniteQuery,
  useMutation,
  useQuery,
  useQueryClient,
} from "@tanstack/react-query";
import { useEffect, useMemo, useState } from "react";
import { api, ask } from "@/shared/api/client";
import { retryInterval } from "@/shared/api/errors";
import { keys } from "@/shared/api/queries";
import type { Job, ResumeRequest } from "@/shared/api/types";
import { useSettled } from "@/shared/api/useSettled";
import { command } from "@/shared/format/shell";
import { at, checkpointsQuery, resumeOptionsQuery } from "@/shared/job/api";
import { checkpointReference } from "@/shared/job/reference";
import { useView } from "@/shared/job/view";
import { firstRow, proposedMicroBatchSize, type Row, rowsOf } from "./layouts";
import { type Numbers, problemsOf, readNumbers } from "./problems";

const TYPING_MILLISECONDS = 250;
const LIVE_MILLISECONDS = 3_000;

export interface Opened {
  /** The dialog's verb; it stays when the job's state changes. */
  verb: "resume" | "resize";
  onClose: () => void;
  /** Why the verb is no longer possible; the dialog still shows the choice. */
  gone: string | null;
}

export function useResume(job: Job, { verb, onClose, gone }: Opened) {
  const view = useView();
  const aim = view.aim;
  const isResize = verb === "resize";
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
  // A launched job is queued and refuses a preview, but its own events would request one again.
  const isLaunched = launch.isPending || launch.isSuccess;
  const preview = useQuery({
    ...previewQuery(job.id, choice ? requestOf(job, choice) : {}),
    enabled: choice !== null && !isLaunched && gone === null && !isSame,
    refetchInterval: refreshOf(isResize),
  });
  // The dialog shows a refused launch itself, until the choice changes.
  const problems = problemsOf(preview.isFetching || launch.isError ? null : preview.error);
  const { reset } = launch;
  // biome-ignore lint/correctness/useExhaustiveDependencies: each change of the choice
  useEffect(() => {
    if (gone === null) reset();
  }, [reset, gone, row?.key, typed, view.checkpoint]);
  Object.assign(problems.at, wrong);
  return {
    // The launch would run out of memory again.
    isDeadEnd: aim === "memory" && choice !== null && needsAsMuch(choice),
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
    /** Whether the visible preview belongs to the choice, so that the launch does what it shows. */
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
      onClose(); // first, because the new state of the job forbids another resume
      client.setQueryData(keys.jobView(job.id), reply.job);
      void client.invalidateQueries({ queryKey: keys.job(job.id) });
      view.change({ dialog: null, checkpoint: null, aim: null, tab: "charts", range: null });
    },
  });
}

export type Resume = ReturnType<typeof useResume>;

/** Return the period of preview reads: during a resize dialog the running attempt trains on. */
function refreshOf(isResize: boolean): number | typeof retryInterval {
  return isResize ? LIVE_MILLISECONDS : retryInterval;
}

function isWhatRuns(choice: Choice | null): boolean {
  if (choice === null) return false;
  const { row, checkpointId, microBatchSize, steps } = choice;
  const named = [checkpointId, microBatchSize, steps];
  return row.isBefore && named.every((value) => value === null);
}

/** Whether the choice needs as much memory as the previous attempt. */
function needsAsMuch({ row, microBatchSize }: Choice): boolean {
  const before = row.option?.batch?.micro_batch_size ?? 1;
  return row.isBefore && (microBatchSize ?? before) >= before;
}

function choiceOf(
  row: Row | undefined,
  numbers: Numbers<number | null> | null,
  checkpointId: string | null,
  allowCodeChange: boolean,
): Choice | null {
  return row && numbers ? { row, checkpointId, allowCodeChange, ...numbers } : null;
}

export interface Choice {
  row: Row;
  /** Null for the newest checkpoint of the lineage. */
  checkpointId: string | null;
  /** Null for an empty field, like `steps`. */
  microBatchSize: number | null;
  steps: number | null;
  /** Whether the custom model's code may differ from the code that wrote the checkpoint. */
  allowCodeChange: boolean;
}

/**
 * Return the shortest request for a choice: like the displayed command line, it omits values that the
 * server selects itself.
 */
export function requestOf(job: Job, choice: Choice): ResumeRequest {
  const { row, checkpointId, microBatchSize, steps } = choice;
  const axes = axesToName(job, row);
  const parallelism = axes ? { ...job.effective_spec.parallelism, ...axes } : null;
  return {
    ...(checkpointId ? { checkpoint_id: checkpointId } : {}),
    world_size: row.worldSize,
    overrides: {
      ...(parallelism ? { parallelism } : {}),
      ...(microBatchSize !== null ? { micro_batch_size: microBatchSize } : {}),
    },
    ...(steps !== null ? { steps } : {}),
    ...(choice.allowCodeChange ? { allow_code_change: true } : {}),
  };
}

export function resumeCommand(reference: string, job: Job, choice: Choice): string {
  const { row, checkpointId, microBatchSize, steps } = choice;
  const before = new Map<string, unknown>(Object.entries(job.effective_spec.parallelism));
  const set = Object.entries(axesToName(job, row) ?? {})
    .filter(([axis, size]) => before.get(axis) !== size)
    .map(([axis, size]) => `parallelism.${axis}=${size}`);
  if (microBatchSize !== null) set.push(`training.micro_batch_size=${microBatchSize}`);
  return command(
    "resume",
    checkpointId ? checkpointReference(reference, checkpointId) : reference,
    "--world-size",
    String(row.worldSize),
    ...(steps !== null ? ["--steps", String(steps)] : []),
    ...set.flatMap((assignment) => ["--set", assignment]),
    ...(choice.allowCodeChange ? ["--allow-code-change"] : []),
  );
}

/**
 * Return the axes that the request must name; null if the number of slots selects the layout.
 *
 * On the present number of slots a resume keeps the layout; on another number it uses the first legal one.
 * A program without layouts has no axes.
 */
function axesToName(job: Job, { option, isFirst, isBefore, worldSize }: Row) {
  if (job.effective_spec.program?.layouts.length === 0) return null;
  const isSelected = isFirst && (isBefore || worldSize !== job.world_size);
  return isSelected ? null : (option?.layout ?? null);
}

/** The preview: the same request as a dry run, which stores nothing. */
const previewQuery = (id: string, request: ResumeRequest) =>
  queryOptions({
    queryKey: keys.jobPart(id, "preview", request),
    queryFn: ({ signal }) => postResume(id, { ...request, dry_run: true }, signal),
    placeholderData: keepPreviousData,
    retry: false,
    staleTime: 0,
  });

/** Launch; the server decides again, because catalog and nodes may have changed since the preview. */
function postResume(id: string, body: ResumeRequest, signal?: AbortSignal) {
  return ask(api.POST("/api/v1/jobs/{job_id}/resume", { params: at(id), body, signal }));
}
