// The content of an artifact of kind `table`: JSON with `columns` and `data`, from a script.

export type Cell = boolean | number | string | null;

export interface TableContent {
  columns: string[];
  /** The first rows. */
  rows: Cell[][];
  /** Rows of the file. */
  total: number;
  /** Columns of the file. */
  width: number;
  /** Rows that the full file omits. */
  leftOut: number;
}

export const SHOWN_ROWS = 50;
export const SHOWN_COLUMNS = 30;
/** Larger files are only downloaded, without a preview. */
export const MAX_BYTES = 5 * 1024 * 1024;

/** Return the first rows of a table; null for a file that is no table. */
export function tableOf(text: string): TableContent | null {
  const found = parsed(text);
  if (typeof found !== "object" || found === null) return null;
  const { columns, data, left_out } = found as Record<string, unknown>;
  if (!Array.isArray(columns) || !Array.isArray(data)) return null;
  return {
    columns: columns.slice(0, SHOWN_COLUMNS).map(String),
    rows: data
      .slice(0, SHOWN_ROWS)
      .map((row) => (Array.isArray(row) ? row.slice(0, SHOWN_COLUMNS).map(cellOf) : [])),
    total: data.length,
    width: columns.length,
    leftOut: typeof left_out === "number" ? left_out : 0,
  };
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function cellOf(value: unknown): Cell {
  if (value === null || typeof value === "boolean" || typeof value === "number") return value;
  return typeof value === "string" ? value : (JSON.stringify(value) ?? null);
}
