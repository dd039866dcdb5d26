// Whether a checkpoint was found whole, when, and what is being done to it.

import { useMutation, useQueryClient } from "@tanstack/react-query";
import { keys } from "@/shared/api/queries";
import type { CheckpointView, Chore } from "@/shared/api/types";
import { moment } from "@/shared/format/time";
import { Badge } from "@/shared/ui/Badge";
import { Button } from "@/shared/ui/Button";
import { InlineError } from "@/shared/ui/Notice";
import { RelativeTime } from "@/shared/ui/RelativeTime";
import { cancelChore } from "../api";
import { choreWords, shareDone } from "./chores";

export function Verified({ row, chore }: { row: CheckpointView; chore: Chore | null }) {
  if (chore && chore.state !== "failed") return <AtWork chore={chore} />;
  return (
    <>
      <Found row={row} />
      {chore && (
        <>
          {" "}
          <Badge tone="bad" title={chore.outcome?.message}>
            {choreWords(chore)}
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

function AtWork({ chore }: { chore: Chore }) {
  const share = shareDone(chore);
  const percent = share === null ? null : Math.floor(100 * share);
  return (
    <span className="checkpoint-work" title={chore.progress?.doing ?? chore.reason}>
      <span>
        {choreWords(chore)}
        {percent !== null && <span className="checkpoint-percent"> {percent} %</span>}
      </span>
      {chore.waiting && chore.state === "queued" && (
        <span className="checkpoint-waiting">{chore.waiting}</span>
      )}
      {chore.state === "running" && (
        <progress aria-label={choreWords(chore)} max={100} value={percent ?? 0} />
      )}
      <TakeBack chore={chore} />
    </span>
  );
}

function TakeBack({ chore }: { chore: Chore }) {
  const client = useQueryClient();
  const cancel = useMutation({
    mutationFn: () => cancelChore(chore.id),
    onSuccess: () => client.invalidateQueries({ queryKey: keys.job(chore.job_id) }),
  });
  if (chore.kind === "delete" && chore.tries > 0) return null; // it has begun: no way back
  return (
    <>
      <Button
        small
        look="quiet"
        busy={cancel.isPending}
        title="Ends it; the checkpoint stays as it is"
        aria-label={`Cancel: ${choreWords(chore)}`}
        onClick={() => cancel.mutate()}
      >
        Cancel
      </Button>
      {cancel.isError && <InlineError error={cancel.error} />}
    </>
  );
}
