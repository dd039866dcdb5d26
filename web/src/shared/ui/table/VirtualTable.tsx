// A table of any length: only rows near the window are rendered, the others are padding.
import { useWindowVirtualizer, type VirtualItem } from "@tanstack/react-virtual";
import { type ReactNode, type Ref, useLayoutEffect, useRef, useState } from "react";
import { cx } from "@/shared/ui/cx";
import { type Column, TableHead } from "./Table";
import "./Table.css";

/** Rows rendered above and below the window, so that the keyboard can move from row to row. */
const OVERSCAN = 12;

/** Attributes of each `<tr>`, so that it is measured and screen readers count it. */
export interface RowPlace {
  ref: Ref<HTMLTableRowElement>;
  "data-index": number;
  "aria-rowindex": number;
}

interface VirtualTableProps<Item> {
  label: string;
  columns: readonly Column[];
  items: readonly Item[];
  keyOf: (item: Item) => string;
  /** Usual height of a row in pixels; rendered rows are measured. */
  rowHeight: number;
  row: (item: Item, place: RowPlace) => ReactNode;
  className?: string;
}

export function VirtualTable<Item>(props: VirtualTableProps<Item>) {
  const { label, columns, items, keyOf, rowHeight, row, className } = props;
  const body = useRef<HTMLTableSectionElement>(null);
  const top = useTop(body);
  const virtual = useWindowVirtualizer<HTMLTableRowElement>({
    count: items.length,
    estimateSize: () => rowHeight,
    getItemKey: (index) => {
      const item = items[index];
      return item === undefined ? index : keyOf(item);
    },
    overscan: OVERSCAN,
    scrollMargin: top,
    useFlushSync: false,
  });
  const shown = virtual.getVirtualItems();
  const { before, after } = roomOf(shown, { top, total: virtual.getTotalSize() });
  return (
    <div className="table-frame">
      <table className={cx("table", className)} aria-label={label} aria-rowcount={items.length + 1}>
        <TableHead columns={columns} />
        <tbody ref={body}>
          <Room height={before} columns={columns.length} />
          {shown.map(({ index }) => {
            const item = items[index];
            if (item === undefined) return null;
            return row(item, {
              ref: virtual.measureElement,
              "data-index": index,
              "aria-rowindex": index + 2,
            });
          })}
          <Room height={after} columns={columns.length} />
        </tbody>
      </table>
    </div>
  );
}

function roomOf(
  shown: readonly VirtualItem[],
  { top, total }: { top: number; total: number },
): { before: number; after: number } {
  const [first, last] = [shown[0], shown.at(-1)];
  if (!first || !last) return { before: 0, after: total };
  return { before: first.start - top, after: total - (last.end - top) };
}

/** Padding for rows that are not rendered. */
function Room({ height, columns }: { height: number; columns: number }) {
  if (height <= 0) return null;
  return (
    // biome-ignore lint/a11y/noAriaHiddenOnFocusable: room takes no focus
    <tr className="table-room" aria-hidden="true" style={{ height }}>
      <td colSpan={columns} />
    </tr>
  );
}

/** Offset of an element from the top of the page, in pixels; content above it may grow. */
function useTop(element: { current: HTMLElement | null }): number {
  const [top, setTop] = useState(0);
  useLayoutEffect(() => {
    const measure = () => {
      if (element.current) setTop(element.current.getBoundingClientRect().top + window.scrollY);
    };
    measure();
    const watcher = new ResizeObserver(measure);
    watcher.observe(document.body);
    return () => watcher.disconnect();
  }, [element]);
  return top;
}
