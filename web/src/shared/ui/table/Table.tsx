// A plain table in a frame that scrolls sideways when the window is narrow.
import type { ReactNode } from "react";
import { cx } from "@/shared/ui/cx";
import "./Table.css";

export interface Column {
  name: string;
  label: ReactNode;
  /** Whether the column holds numbers, which are aligned at the right. */
  number?: boolean;
  /** In pixels, for tables with fixed columns. */
  width?: number;
  className?: string;
}

interface TableProps {
  label: string;
  columns: readonly Column[];
  /** Rows: `<tr>` elements. */
  children: ReactNode;
  className?: string;
}

export function Table({ label, columns, children, className }: TableProps) {
  return (
    <div className="table-frame">
      <table className={cx("table", className)} aria-label={label}>
        <TableHead columns={columns} />
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}

export function TableHead({ columns }: { columns: readonly Column[] }) {
  return (
    <thead>
      <tr>
        {columns.map((column) => (
          <th
            key={column.name}
            scope="col"
            className={cx(column.number && "number", column.className)}
            style={{ width: column.width }}
          >
            {column.label}
          </th>
        ))}
      </tr>
    </thead>
  );
}
