// Images and histograms of a job by step, and its files.
import { useInfiniteQuery } from "@tanstack/react-query";
import { useState } from "react";
import type { Artifact, Job } from "@/shared/api/types";
import { bytes, count, NONE } from "@/shared/format/numbers";
import { command } from "@/shared/format/shell";
import { moment } from "@/shared/format/time";
import { MoreRows } from "@/shared/job/MoreRows";
import { useReference } from "@/shared/job/reference";
import { Button } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Absent, EmptyState } from "@/shared/ui/Notice";
import { Table } from "@/shared/ui/table/Table";
import { artifactsQuery, contentAddress } from "./api";
import { HistogramFigure } from "./HistogramFigure";
import { ImageFigure } from "./ImageFigure";
import { sequencesOf } from "./sequences";
import { TablePreview } from "./TablePreview";
import { MAX_BYTES } from "./tables";
import "./artifacts.css";

export function Artifacts({ job }: { job: Job }) {
  const images = useInfiniteQuery(artifactsQuery(job.id, "image"));
  const histograms = useInfiniteQuery(artifactsQuery(job.id, "histogram"));
  const files = useInfiniteQuery(artifactsQuery(job.id, "files"));
  const reference = useReference(job);
  if (!images.data) return <Absent query={images} lines={12} />;
  if (!histograms.data) return <Absent query={histograms} lines={12} />;
  if (!files.data) return <Absent query={files} lines={12} />;
  const [pictures, shapes, rows] = [images, histograms, files].map(({ data }) =>
    (data?.pages ?? []).flatMap((page) => page.items),
  ) as [Artifact[], Artifact[], Artifact[]];
  if (pictures.length + shapes.length + rows.length === 0) {
    return (
      <EmptyState title="No artifacts">
        <p>
          A script stores images, histograms, tables and files by <code>run.log_image</code>,{" "}
          <code>run.log_histogram</code>, <code>run.log_table</code> and{" "}
          <code>run.log_artifact</code>; <code>program.artifacts</code> names files that are stored
          at the end.
        </p>
      </EmptyState>
    );
  }
  return (
    <div className="stack">
      {pictures.length > 0 && (
        <section>
          <h2 className="job-section row">Images</h2>
          <div className="artifact-grid">
            {sequencesOf(pictures).map((sequence) => (
              <ImageFigure key={sequence.name} jobId={job.id} {...sequence} />
            ))}
          </div>
          <MoreRows query={images} />
        </section>
      )}
      {shapes.length > 0 && (
        <section>
          <h2 className="job-section row">Histograms</h2>
          <div className="artifact-grid">
            {sequencesOf(shapes).map((sequence) => (
              <HistogramFigure key={sequence.name} {...sequence} />
            ))}
          </div>
          <MoreRows query={histograms} />
        </section>
      )}
      {rows.length > 0 && (
        <section>
          <h2 className="job-section row">Files</h2>
          <Files jobId={job.id} rows={rows} />
          <MoreRows query={files} />
        </section>
      )}
      <CommandLine command={command("artifacts", reference)} />
    </div>
  );
}

const COLUMNS = [
  { name: "name", label: "Name" },
  { name: "size", label: "Size", number: true },
  { name: "kind", label: "Kind" },
  { name: "step", label: "Step", number: true },
  { name: "attempt", label: "Attempt", number: true },
  { name: "time", label: "Logged" },
];

function Files({ jobId, rows }: { jobId: string; rows: readonly Artifact[] }) {
  return (
    <Table label="Files" columns={COLUMNS}>
      {rows.map((row) => (
        <File key={row.id} jobId={jobId} row={row} />
      ))}
    </Table>
  );
}

function File({ jobId, row }: { jobId: string; row: Artifact }) {
  const [isOpen, setIsOpen] = useState(false);
  const isTable = row.kind === "table" && (row.size ?? 0) <= MAX_BYTES;
  return (
    <>
      <tr>
        <td className="artifact-name">
          <a href={contentAddress(jobId, row)} download={row.name.split("/").at(-1)}>
            {row.name}
          </a>
          {isTable && (
            <Button
              small
              look="quiet"
              aria-label={`${isOpen ? "Hide" : "Show"} ${row.name}`}
              aria-expanded={isOpen}
              onClick={() => setIsOpen(!isOpen)}
            >
              {isOpen ? "Hide" : "Show"}
            </Button>
          )}
        </td>
        <td className="number">{bytes(row.size)}</td>
        <td>{row.kind}</td>
        <td className="number">{row.step === null ? NONE : count(row.step)}</td>
        <td className="number">{row.attempt}</td>
        <td className="artifact-time">{moment(new Date(row.time * 1000).toISOString())}</td>
      </tr>
      {isTable && isOpen && (
        <tr>
          <td colSpan={COLUMNS.length} className="artifact-preview">
            <TablePreview jobId={jobId} artifact={row} />
          </td>
        </tr>
      )}
    </>
  );
}
