// The batch partition: a square for each micro-batch, by data-parallel rank and round.
import type { BatchPlan } from "@/shared/api/types";
import { count, percent, plural } from "@/shared/format/numbers";
import { cx } from "@/shared/ui/cx";

/** With more ranks or rounds than this, only the text is shown. */
const MAX_SQUARES = 16;

export function BatchPartition({ batch }: { batch: BatchPlan }) {
  const isDrawn = batch.dp <= MAX_SQUARES && batch.rounds <= MAX_SQUARES;
  return (
    <>
      <h3>
        Batch{" "}
        <span className="muted">
          {plural(batch.global_batch_size, "sequence")} in {count(batch.micro_batches)}{" "}
          micro-batches of {count(batch.micro_batch_size)}
        </span>
      </h3>
      {isDrawn && <Squares batch={batch} />}
      <p className={cx("faint", batch.idle_share > 0 && "tone-warn")}>
        {plural(batch.rounds, "round")} on {plural(batch.dp, "data-parallel rank")},{" "}
        {percent(batch.idle_share)} idle
        {batch.less_idle_micro_batch_size
          ? `; a micro-batch of ${batch.less_idle_micro_batch_size} leaves less idle`
          : ""}
      </p>
    </>
  );
}

/** Micro-batch i goes to rank i mod dp; in the last round, ranks without one run weight zero. */
function Squares({ batch }: { batch: BatchPlan }) {
  const { dp, rounds } = batch;
  // Lines are rounds or ranks, whichever are fewer.
  const width = Math.max(dp, rounds);
  return (
    <div
      className="partition"
      style={{ gridTemplateColumns: `repeat(${width}, 12px)` }}
      aria-hidden="true"
    >
      {Array.from({ length: dp * rounds }, (_, square) => {
        const along = square % width;
        const line = Math.floor(square / width);
        const [rank, round] = dp === width ? [along, line] : [line, along];
        const microBatch = round * dp + rank;
        const isIdle = microBatch >= batch.micro_batches;
        return (
          <span
            // biome-ignore lint/suspicious/noArrayIndexKey: a square is its place
            key={square}
            className={cx("partition-square", isIdle && "partition-idle")}
            title={`round ${round}, rank ${rank}: ${isIdle ? "idle" : `micro-batch ${microBatch}`}`}
          />
        );
      })}
    </div>
  );
}
