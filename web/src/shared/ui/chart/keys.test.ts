import type { KeyboardEvent } from "react";
import { expect, test, vi } from "vitest";
import { ChartCursor } from "./cursor";
import { onChartKey } from "./keys";

const press = (key: string, onZoom: () => void) => {
  const event = { key, shiftKey: false, preventDefault: vi.fn() };
  onChartKey(event as unknown as KeyboardEvent, {
    id: "loss",
    curves: [],
    axis: "step",
    cursor: new ChartCursor(),
    stretch: [1, 100],
    onZoom,
    focus: null,
  });
  return event;
};

test("Escape shows everything, also before the last zoom is drawn", () => {
  const onZoom = vi.fn();
  press("+", onZoom);
  press("Escape", onZoom); // the same stretch is still drawn
  expect(onZoom.mock.calls).toEqual([[[50, 100]], [null]]);
});

test("a key without a function is left to the page", () => {
  const onZoom = vi.fn();
  expect(press("z", onZoom).preventDefault).not.toHaveBeenCalled();
  expect(onZoom).not.toHaveBeenCalled();
});
