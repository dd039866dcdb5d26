import { describe, expect, it } from "vitest";
import { longest, median, type Span, slowest, spanWords } from "./ranks";

function span(rank: number, compute: number, data: number, wait: number): Span {
  return {
    first_rank: rank,
    last_rank: rank,
    rank,
    compute_seconds: compute,
    data_seconds: data,
    wait_seconds: wait,
  };
}

const SPANS = [span(0, 1, 0, 0.5), span(1, 1, 0.5, 0), span(2, 1, 0, 0.5), span(3, 1.2, 0, 0.4)];

describe("times of ranks", () => {
  it("has the height of the longest step", () => {
    expect(longest(SPANS)).toBeCloseTo(1.6);
  });

  it("lists the longest own times first, as multiples of the median", () => {
    const found = slowest(SPANS, 2);
    expect(found.map(({ span }) => span.rank)).toEqual([1, 3]);
    expect(found[0]?.factor).toBeCloseTo(1.5 / 1.1);
  });

  it("takes the median of an even and an odd number", () => {
    expect(median([3, 1, 2])).toBe(2);
    expect(median([4, 1, 2, 3])).toBe(2.5);
  });

  it("names a rank, or the slowest of many", () => {
    expect(spanWords(span(5, 1, 0, 0))).toBe("rank 5");
    expect(spanWords({ ...span(77, 1, 0, 0), first_rank: 64, last_rank: 127 })).toBe(
      "slowest of ranks 64 to 127: 77",
    );
  });

  it("does not divide by zero", () => {
    expect(slowest([span(0, 0, 0, 1)], 1)[0]?.factor).toBe(1);
  });
});
