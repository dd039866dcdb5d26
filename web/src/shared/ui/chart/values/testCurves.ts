// A curve for tests, with one bucket per point.
import type { Curve } from "../curve";
import { SINGLE } from "../looks";

export function curveOf(values: readonly (number | null)[], x?: readonly number[]): Curve {
  const places = x ?? values.map((_, at) => at + 1);
  return {
    slot: 0,
    label: null,
    isBranch: false,
    look: SINGLE,
    begins: places,
    x: places,
    steps: places,
    last: values,
    smooth: values,
    min: values,
    max: values,
    count: values.map(() => 1),
    nonFinite: values.map((value) => (value === null ? 1 : 0)),
  };
}
