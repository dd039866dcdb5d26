"""Prediction of step time and memory peak for a layout on known hardware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainyard.planner.results import MemoryEstimate, SpeedEstimate, StepPart
from trainyard.planner.speed.calibrate import is_said_to_fit, predicted_bytes
from trainyard.planner.speed.quantities import NodeKind, Quantity
from trainyard.planner.speed.rates import Calibration, seconds_by_quantity
from trainyard.planner.speed.step_work import step_work
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.training.batch_partition import BatchPartition

PART_OF: Mapping[Quantity, StepPart] = {
    "float32_flops": "products",
    "bfloat16_flops": "products",
    "attention_flops": "products",
    "moved_bytes": "elementwise",
    "updated_bytes": "update",
    "node_bytes": "traffic",
    "network_bytes": "traffic",
    "messages": "traffic",
    "block_passes": "host",
    "rounds": "host",
    "steps": "host",
}


@dataclass(frozen=True)
class Predictor:
    """Predictor for nodes of one kind, with the coefficients for their hardware."""

    node: NodeKind
    """Kind of the nodes."""
    calibration: Calibration
    """Coefficients for the hardware of the nodes."""

    def speed(
        self, spec: JobSpec, layout: Layout, *, partition: BatchPartition, memory: MemoryEstimate
    ) -> SpeedEstimate:
        """Return the predicted speed of a layout.

        Args:
            spec: the job, without `auto` values.
            layout: the parallel axes.
            partition: micro-batch size and rounds.
            memory: estimate from the spec, which the calibration corrects.

        Raises:
            SpecError: the pipeline cannot divide the model into stages, or the batch into
                micro-batches.
        """
        work = step_work(spec, layout, partition=partition, node=self.node)
        spent: dict[StepPart, float] = {}
        for quantity, seconds in seconds_by_quantity(work, self.calibration.seconds).items():
            part = PART_OF[quantity]
            spent[part] = spent.get(part, 0.0) + seconds
        step = sum(spent.values())
        return SpeedEstimate(
            step_seconds=step,
            tokens_per_second=spec.tokens_per_step / step,
            spent_seconds=spent,
            memory_bytes=round(predicted_bytes(self.calibration, memory)),
        )

    def fits(self, memory: MemoryEstimate, available: int) -> bool:
        """Return whether a layout fits; without runs on the hardware, the estimate alone
        decides."""
        if not self.calibration.runs:
            return memory.total <= available
        return is_said_to_fit(self.calibration, memory, available)
