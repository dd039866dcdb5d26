"""Fine-tune a small Llama with Hugging Face's Trainer; it resumes on any number of ranks."""

from __future__ import annotations

import argparse
import inspect
import math
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

import trainyard
from trainyard.adapters.hugging_face import ExactTrainer

SEED = 7
LENGTH = 32


class Source(Dataset[dict[str, Any]]):
    """Pieces of the source of argparse, a token a byte; the last ones of a piece are padding."""

    def __init__(self) -> None:
        text = inspect.getsource(argparse).encode("ascii", "replace")[: 100 * LENGTH]
        self.tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().view(-1, LENGTH)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        labels = self.tokens[index].clone()
        labels[LENGTH - index % 8 :] = -100  # as many labels as a text has tokens
        return {"input_ids": self.tokens[index], "labels": labels}


def pretrained() -> LlamaForCausalLM:
    """Return the model to fine-tune; yours comes from `from_pretrained`."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config)


def arguments() -> argparse.Namespace:
    """Read the command line; a job gives `program.arguments` as such words."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=14, help="samples in a step, over all ranks")
    parser.add_argument("--accumulation", type=int, default=3, help="micro-batches in a step")
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", default="output")
    parser.add_argument("--resume", type=Path, help="folder of a checkpoint, outside of a job")
    return parser.parse_args()


def main() -> None:
    """Train until the last step, or until the job is stopped."""
    args = arguments()
    run = trainyard.init()
    trainer = ExactTrainer(
        pretrained(),
        TrainingArguments(
            output_dir=args.output,
            max_steps=args.steps,
            # With so many micro-batches in a step, on any number of ranks.
            per_device_train_batch_size=math.ceil(
                args.batch / (args.accumulation * run.world_size)
            ),
            learning_rate=0.003,
            lr_scheduler_type="constant",
            data_seed=SEED,
            dataloader_num_workers=args.workers,
            logging_steps=1,
            save_steps=args.save_every,
            report_to="none",
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
            dataloader_pin_memory=torch.cuda.is_available(),
        ),
        train_dataset=Source(),
        global_batch_size=args.batch,
    )
    # In a job it resumes from the job's checkpoint, saves there, and stops with the job.
    trainer.train(resume_from_checkpoint=args.resume)
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main()
