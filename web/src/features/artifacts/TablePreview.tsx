// The first rows of a table that a script logged.
import { useQuery } from "@tanstack/react-query";
import type { Artifact } from "@/shared/api/types";
import { count, NONE, plural } from "@/shared/format/numbers";
import { factText } from "@/shared/format/spec";
import { Absent } from "@/shared/ui/Notice";
import { Table } from "@/shared/ui/table/Table";
import { contentAddress } from "./api";
import { type Cell, SHOWN_COLUMNS, SHOWN_ROWS, tableOf } from "./tables";

export function TablePreview({ jobId, artifact }: { jobId: string; artifact: Artifact }) {
  const table = useQuery({
    queryKey: ["artifact-table", artifact.id],
    queryFn: async ({ signal }) => {
      const answer = await fetch(contentAddress(jobId, artifact), { signal });
      if (!answer.ok) throw new Error(`The server answers ${answer.status}.`);
      return tableOf(await answer.text());
    },
    staleTime: Number.POSITIVE_INFINITY, // content never changes under its id
  });
  if (table.data === undefined) return <Absent query={table} lines={4} />;
  if (table.data === null) return <p className="muted">This file is not a table.</p>;
  const { columns, rows, total, leftOut } = table.data;
  return (
    <>
      <Table
        label={artifact.name}
        className="artifact-table"
        columns={columns.map((label, place) => ({ name: `${place}`, label }))}
      >
        {rows.map((row, place) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: rows of a file that never changes
          <tr key={place}>
            {columns.map((column, at) => (
              // biome-ignore lint/suspicious/noArrayIndexKey: two columns may have one name
              <td key={`${at}-${column}`} className={typeof row[at] === "number" ? "number" : ""}>
                {cellText(row[at] ?? null)}
              </td>
            ))}
          </tr>
        ))}
      </Table>
      <p className="muted small">
        {total > SHOWN_ROWS
          ? `The first ${SHOWN_ROWS} of ${count(total)} rows`
          : plural(total, "row")}
        {table.data.width > SHOWN_COLUMNS &&
          `, ${SHOWN_COLUMNS} of ${count(table.data.width)} columns`}
        {leftOut > 0 && `; ${plural(leftOut, "row")} omitted: the file is full`}
      </p>
    </>
  );
}

const cellText = (cell: Cell) => (cell === null ? NONE : factText(cell));
