// Curves of a job's chart: the lineage, and the branches that a rollback abandoned.
import type { MetricLine } from "@/shared/api/types";
import type { Curve } from "@/shared/ui/chart/curve";
import { BRANCH, SINGLE } from "@/shared/ui/chart/looks";

/** Name of the branch that all attempts form together; the others are abandoned. */
export const LINEAGE = "lineage";

/** Return the curves of one series; without a lineage the first branch stands for it. */
export function curvesOf(series: readonly MetricLine[]): Curve[] {
  const lineage = series.find(({ branch }) => branch === LINEAGE) ?? series[0];
  return series.map((each) => curveOf(each, each !== lineage));
}

function curveOf(series: MetricLine, isBranch: boolean): Curve {
  const { steps, last } = series;
  return {
    slot: 0,
    label: isBranch ? `${series.branch.replace("-", " ")}, abandoned` : null,
    isBranch,
    look: isBranch ? BRANCH : SINGLE,
    begins: series.first_steps,
    x: steps,
    steps,
    last,
    smooth: last,
    min: series.min,
    max: series.max,
    count: series.count,
    nonFinite: series.non_finite,
  };
}
