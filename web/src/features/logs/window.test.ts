import { describe, expect, test } from "vitest";
import {
  chunksOf,
  contentHeight,
  isAtEnd,
  MAX_PIXELS,
  ROW_HEIGHT,
  scrollTopOf,
  windowAt,
  withOpenLine,
} from "./window";

const short = { first: 0, total: 1000, height: 360 };
const dropped = { first: 5000, total: 6000, height: 360 };
const huge = { first: 0, total: 3_000_000, height: 360 };
const BOX_ROWS = 360 / ROW_HEIGHT;

/** Return the visible lines at a scroll position, from the drawn lines and their offset. */
function inSight(geometry: typeof short, scrollTop: number): [number, number] {
  const { from, top } = windowAt(geometry, scrollTop);
  const first = from + (scrollTop - top) / ROW_HEIGHT;
  return [first, first + BOX_ROWS];
}

describe("visible lines", () => {
  test("at the top, at the end, and after dropped lines", () => {
    expect(windowAt(short, 0)).toEqual({ from: 0, to: 40, top: 0 });
    expect(windowAt(short, 1000 * ROW_HEIGHT - 360)).toMatchObject({ from: 960, to: 1000 });
    expect(windowAt(dropped, 0)).toMatchObject({ from: 5000, to: 5040 });
  });

  test("drawn lines have their right place", () => {
    const { from, top } = windowAt(short, 9000);
    expect(from).toBe(480);
    expect(top).toBe(480 * ROW_HEIGHT);
  });

  test("an empty log draws nothing", () => {
    expect(windowAt({ first: 0, total: 0, height: 360 }, 0)).toEqual({ from: 0, to: 0, top: 0 });
  });

  test("a log taller than a browser can draw is scaled, and reaches both of its ends", () => {
    expect(contentHeight(huge)).toBe(MAX_PIXELS);
    expect(inSight(huge, 0)[0]).toBe(0);
    const [first, last] = inSight(huge, MAX_PIXELS - 360);
    expect(first).toBeCloseTo(3_000_000 - BOX_ROWS, 3);
    expect(last).toBeCloseTo(3_000_000, 3);
  });

  test.each([short, dropped, huge])("a line is put into the middle of the box %#", (geometry) => {
    const line = geometry.first + Math.floor((geometry.total - geometry.first) / 2);
    const [first, last] = inSight(geometry, scrollTopOf(geometry, line));
    expect(line + 0.5).toBeCloseTo((first + last) / 2, 3);
  });

  test("the first and the last line stay at the edges", () => {
    expect(scrollTopOf(short, 0)).toBe(0);
    expect(scrollTopOf(short, 999)).toBe(1000 * ROW_HEIGHT - 360);
  });

  test("the end is reached when the last lines are visible", () => {
    expect(isAtEnd(short, 1000 * ROW_HEIGHT - 360)).toBe(true);
    expect(isAtEnd(short, 1000 * ROW_HEIGHT - 360 - 10 * ROW_HEIGHT)).toBe(false);
    expect(isAtEnd(huge, MAX_PIXELS - 360)).toBe(true);
  });
});

describe("chunks", () => {
  test("cover the visible lines", () => {
    expect(chunksOf({ from: 0, to: 500 })).toEqual([0]);
    expect(chunksOf({ from: 499, to: 501 })).toEqual([0, 1]);
    expect(chunksOf({ from: 10, to: 10 })).toEqual([]);
  });
});

describe("the line that still changes", () => {
  const page = { total_lines: 2, lines: [{ number: 1, text: "b" }], open_line: "20%" };

  test("is the last one of the page", () => {
    expect(withOpenLine(page)).toMatchObject({
      total_lines: 3,
      lines: [
        { number: 1, text: "b" },
        { number: 2, text: "20%" },
      ],
    });
  });

  test("is absent once the output ends with a complete line", () => {
    const complete = { ...page, open_line: null };
    expect(withOpenLine(complete)).toBe(complete);
  });
});
