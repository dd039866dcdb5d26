// The last verification of a checkpoint, and its open operation.

import { useMutation, useQueryClient } from "@tanstack/react-query";
import { keys } from "@/shared/api/queries";
import type { CheckpointView, Operation } from "@/shared/api/types";
import { moment } from "@/shared/format/time";
import { Badge } from "@/shared/ui/Badge";
import { Button } from "@/shared/ui/Button";
import { InlineError } from "@/shared/ui/Notice";
import { RelativeTime } from "@/shared/ui/RelativeTime";
import { cancelOperation } from "./api";
import { failedTries, operationWords, shareDone } from "./operations";

interface VerifiedProps {
  row: CheckpointView;
  operation: Operation | null;
  /** Why the caller may not cancel the operation. */
  barrier: string | null;
}

export function Verified({ row, operation, barrier }: VerifiedProps) {
  if (operation && operation.state !== "failed") {
    return <AtWork operation={operation} barrier={barrier} />;
  }
  return (
    <>
      <Found row={row} />
      {operation && (
        <>
          {" "}
          <Badge tone="bad" title={operation.outcome?.message}>
            {operationWords(operation)}
          </Badge>
        </>
      )}
    </>
  );
}

function Found({ row }: { row: CheckpointView }) {
  const found = row.verification;
  if (!found) return <span className="muted">not yet</span>;
  if (!found.ok) {
    return (
      <Badge tone="bad" title={`${found.message ?? ""}\n\nFound ${moment(found.at)}`}>
        ✗ {found.fault?.replaceAll("_", " ")}
      </Badge>
    );
  }
  const how = found.loaded_at
    ? `Every checksum is right; all ${found.tensors} tensors loaded on ${found.loaded_on}.`
    : "Every checksum is right.";
  return (
    <>
      <Badge tone="ok" title={how}>
        ✓ {found.loaded_at ? "loaded" : "checksums"}
      </Badge>{" "}
      <span className="muted">
        <RelativeTime at={found.at} />
      </span>
    </>
  );
}

interface WorkProps {
  operation: Operation;
  barrier: string | null;
}

function AtWork({ operation, barrier }: WorkProps) {
  const share = shareDone(operation);
  const percent = share === null ? null : Math.floor(100 * share);
  return (
    <span
      className="checkpoint-work small"
      title={
        operation.failing
          ? failedTries(operation.failing)
          : (operation.progress?.doing ?? operation.reason)
      }
    >
      <span>
        {operationWords(operation)}
        {percent !== null && ` ${percent} %`}
      </span>
      {operation.waiting && operation.state === "queued" && (
        <span className="checkpoint-waiting">{operation.waiting}</span>
      )}
      {operation.state === "running" && (
        <progress aria-label={operationWords(operation)} max={100} value={percent ?? 0} />
      )}
      <TakeBack operation={operation} barrier={barrier} />
    </span>
  );
}

function TakeBack({ operation, barrier }: WorkProps) {
  const client = useQueryClient();
  const cancel = useMutation({
    mutationFn: () => cancelOperation(operation.id),
    onSuccess: () => client.invalidateQueries({ queryKey: keys.job(operation.job_id) }),
  });
  if (operation.kind === "delete" && operation.tries > 0) return null; // a started deletion is final
  return (
    <>
      <Button
        small
        look="quiet"
        barrier={barrier}
        busy={cancel.isPending}
        title="Ends it; the checkpoint stays as it is"
        aria-label={`Cancel: ${operationWords(operation)}`}
        onClick={() => cancel.mutate()}
      >
        Cancel
      </Button>
      {cancel.isError && <InlineError error={cancel.error} />}
    </>
  );
}
