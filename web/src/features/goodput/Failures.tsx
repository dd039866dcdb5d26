// The mean time to failure of attempts, with its confidence bounds.
import type { Goodput } from "@/shared/api/types";
import { plural } from "@/shared/format/numbers";
import { duration } from "@/shared/format/time";
import { Fact } from "@/shared/ui/Field";

type Failed = Pick<
  Goodput,
  "failures" | "mttf_seconds" | "mttf_lower_seconds" | "mttf_upper_seconds"
>;

export function Failures({ of, note }: { of: Failed; note?: string }) {
  const bounds =
    of.failures > 0 &&
    `, 90 % between ${duration(of.mttf_lower_seconds)} and ${duration(of.mttf_upper_seconds)}`;
  return (
    <Fact name="Mean time to failure">
      {duration(of.mttf_seconds)}{" "}
      <span className="muted">
        ({plural(of.failures, "failure")}
        {note}
        {bounds})
      </span>
    </Fact>
  );
}
