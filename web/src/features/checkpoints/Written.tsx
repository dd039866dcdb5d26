// Writers and speed of a save, and how long training waited for it: short, and in full on demand.
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import type { CheckpointView } from "@/shared/api/types";
import { bandwidth, bytes, count, plural } from "@/shared/format/numbers";
import { fine } from "@/shared/format/time";
import { InlineError } from "@/shared/ui/Notice";
import { Popover } from "@/shared/ui/Popover";
import { SkeletonLines } from "@/shared/ui/Skeleton";
import { Table } from "@/shared/ui/table/Table";
import { checkpointQuery } from "./api";

export function Written({ row }: { row: CheckpointView }) {
  const [isOpen, setOpen] = useState(false);
  const { stall_seconds: stall } = row;
  return (
    <>
      <Popover
        label={`How step ${row.step} of attempt ${row.attempt} was written`}
        buttonClassName="link"
        button={writtenWords(row)}
        onOpen={() => setOpen(true)}
      >
        <p>
          {plural(row.files, "file")}, {bytes(row.size)}. Saved in {fine(row.save_seconds)},
          training waited {stall === null ? "for an unknown time" : fine(stall)}.
        </p>
        {isOpen && <Writers id={row.id} />}
      </Popover>
      {stall !== null && <div className="muted">stall {fine(stall)}</div>}
    </>
  );
}

/** `2 writers, 1.3 GiB/s`; without writers, the duration of the save. */
export function writtenWords(
  row: Pick<CheckpointView, "writers" | "size" | "write_seconds" | "save_seconds">,
): string {
  if (row.writers === null) return `in ${fine(row.save_seconds)}`;
  return `${plural(row.writers, "writer")}, ${bandwidth(row.size, row.write_seconds)}`;
}

const COLUMNS = [
  { name: "rank", label: "Rank", number: true },
  { name: "size", label: "Size", number: true },
  { name: "files", label: "Files", number: true },
  { name: "seconds", label: "Time", number: true },
  { name: "bandwidth", label: "Bandwidth", number: true },
];

function Writers({ id }: { id: string }) {
  const found = useQuery(checkpointQuery(id));
  if (found.isError) return <InlineError error={found.error} />;
  if (!found.data) return <SkeletonLines lines={2} />;
  const { manifest } = found.data;
  if ("saved_by" in manifest) {
    return <p className="muted">A program saved it, on {plural(manifest.world_size, "rank")}.</p>;
  }
  const writers = manifest.writers ?? [];
  if (writers.length === 0) return <p className="muted">The manifest does not name the writers.</p>;
  return (
    <Table label="Writers" columns={COLUMNS}>
      {writers.map((writer) => (
        <tr key={writer.rank}>
          <td className="number">{writer.rank}</td>
          <td className="number">{bytes(writer.size)}</td>
          <td className="number">{count(writer.files)}</td>
          <td className="number">{fine(writer.write_seconds)}</td>
          <td className="number">{bandwidth(writer.size, writer.write_seconds)}</td>
        </tr>
      ))}
    </Table>
  );
}
