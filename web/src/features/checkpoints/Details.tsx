// Contents and place of a checkpoint, read on demand.
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import type { CheckpointView, SavedFile } from "@/shared/api/types";
import { bytes, count } from "@/shared/format/numbers";
import { CodeWithCopy } from "@/shared/ui/CommandLine";
import { Fact } from "@/shared/ui/Field";
import { InlineError } from "@/shared/ui/Notice";
import { Popover } from "@/shared/ui/Popover";
import { SkeletonLines } from "@/shared/ui/Skeleton";
import { checkpointQuery } from "./api";

const MAX_SHOWN_FILES = 20;

export function Details({ row }: { row: CheckpointView }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <Popover
      label={`What step ${row.step} of attempt ${row.attempt} holds`}
      buttonClassName="link"
      button="Details"
      onOpen={() => setOpen(true)}
    >
      <dl className="facts-column">
        <Fact name="Id">
          <CodeWithCopy text={row.id} />
        </Fact>
        <Fact name="Place">
          <CodeWithCopy text={row.place} />
        </Fact>
        <Fact name="Came from">
          {row.parent ? <CodeWithCopy text={row.parent} /> : "the start"}
        </Fact>
        {row.dtype !== null && <Fact name="Weights">{row.dtype}</Fact>}
        {isOpen && <Recorded id={row.id} />}
      </dl>
    </Popover>
  );
}

function Recorded({ id }: { id: string }) {
  const found = useQuery(checkpointQuery(id));
  if (found.isError) return <InlineError error={found.error} />;
  if (!found.data) return <SkeletonLines lines={2} />;
  const { manifest } = found.data;
  if ("saved_by" in manifest) return <ProgramFiles files={manifest.files} />;
  const { train_state, spec_digest } = manifest;
  const { position = 0, consumed = 0, skipped = [] } = train_state.data;
  const leftOut = skipped.reduce((sum, [start = 0, end = 0]) => sum + end - start, 0);
  return (
    <>
      <Fact name="Tokens">{count(train_state.tokens)}</Fact>
      <Fact name="Data position">
        sequence {count(position)}; {count(consumed)} trained on
        {leftOut > 0 && `, ${count(leftOut)} left out`}
      </Fact>
      <Fact name="Spec digest">
        <CodeWithCopy text={spec_digest} />
      </Fact>
    </>
  );
}

/** A program's checkpoint: only its files are known. */
function ProgramFiles({ files }: { files: readonly SavedFile[] }) {
  const more = files.length - MAX_SHOWN_FILES;
  return (
    <Fact name="Files">
      <ul>
        {files.slice(0, MAX_SHOWN_FILES).map((file) => (
          <li key={file.path}>
            {file.path} <span className="muted">{bytes(file.size)}</span>
          </li>
        ))}
        {more > 0 && <li className="muted">and {count(more)} more</li>}
      </ul>
    </Fact>
  );
}
