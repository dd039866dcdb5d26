// The visible lines of a long log, and their offset. Pure.

export const ROW_HEIGHT = 18;
/** Browsers limit the height of elements, Firefox to 17.9 million pixels: longer logs are scaled. */
export const MAX_PIXELS = 8_000_000;
const OVERSCAN = 20;

/** A log of lines `first` up to, but not including, `total`, in a box of some height. */
export interface Geometry {
  first: number;
  total: number;
  /** Pixels of the box. */
  height: number;
}

export interface LineWindow {
  /** First line to draw. */
  from: number;
  /** Line after the last one to draw. */
  to: number;
  /** Pixels from the top of the content to the first drawn line. */
  top: number;
}

/** Pixels of the whole content. */
export function contentHeight({ first, total }: Geometry): number {
  return Math.min((total - first) * ROW_HEIGHT, MAX_PIXELS);
}

/** Return the visible lines, with some more above and below. */
export function windowAt(geometry: Geometry, scrollTop: number): LineWindow {
  const { first, total, height } = geometry;
  const top = topRow(geometry, scrollTop);
  const from = Math.max(first, first + Math.floor(top) - OVERSCAN);
  const to = Math.min(total, first + Math.ceil(top + height / ROW_HEIGHT) + OVERSCAN);
  return { from, to: Math.max(from, to), top: scrollTop - (top + first - from) * ROW_HEIGHT };
}

/** Return the scroll position that centres a line in the box. */
export function scrollTopOf(geometry: Geometry, line: number): number {
  const { first, total, height } = geometry;
  const rows = total - first;
  const visible = height / ROW_HEIGHT;
  const wanted = Math.min(
    Math.max(line - first - visible / 2 + 0.5, 0),
    Math.max(rows - visible, 0),
  );
  return wanted * scale(geometry);
}

export function isAtEnd(geometry: Geometry, scrollTop: number): boolean {
  return contentHeight(geometry) - geometry.height - scrollTop < 2 * ROW_HEIGHT;
}

function topRow(geometry: Geometry, scrollTop: number): number {
  return Math.max(scrollTop, 0) / scale(geometry);
}

/** Return the scroll distance of one row: its height, unless the content is scaled. */
function scale(geometry: Geometry): number {
  const { first, total, height } = geometry;
  const rows = total - first;
  if (rows * ROW_HEIGHT <= MAX_PIXELS) return ROW_HEIGHT;
  return (MAX_PIXELS - height) / (rows - height / ROW_HEIGHT);
}

interface Page {
  total_lines: number;
  lines: { number: number; text: string }[];
  open_line?: string | null;
}

/** Return a page with its unfinished last line, such as a progress bar. */
export function withOpenLine<P extends Page>(page: P): P {
  const { open_line: text, total_lines: number, lines } = page;
  if (text == null) return page;
  return { ...page, total_lines: number + 1, lines: [...lines, { number, text }] };
}

export const CHUNK_LINES = 500;

/** Return the numbers of the chunks that hold lines `from` up to `to`. */
export function chunksOf({ from, to }: Pick<LineWindow, "from" | "to">): number[] {
  if (to <= from) return [];
  const first = Math.floor(from / CHUNK_LINES);
  const last = Math.floor((to - 1) / CHUNK_LINES);
  return Array.from({ length: last - first + 1 }, (_, index) => first + index);
}
