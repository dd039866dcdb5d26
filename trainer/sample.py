"""Text from a checkpoint: `python -m trainer.sample RUN --checkpoint FOLDER --prompt TEXT`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from trainer.checkpoint.manifest import check_contents, read_manifest
from trainer.checkpoint.reader.metadata import kinds_of
from trainer.checkpoint.reader.storage_reader import CheckedReader, point_at
from trainer.checkpoint.tensors import WEIGHTS, tied_weights, weight_tensors
from trainer.data.open_tokenizer import open_tokenizer
from trainer.data.tokenizer import Tokenizer
from trainer.errors import RunError
from trainer.models.base import Model
from trainer.models.families import build_model
from trainer.run import add_root_argument, open_run
from trainer.storage.root import StoragePath
from trainyard.protocol.attempt import ResumePoint
from trainyard.protocol.operations import SampleEnd, SampleResult
from trainyard.spec.job import JobSpec


def main() -> int:
    """Print the prompt and its continuation; return 1 if run or checkpoint cannot be loaded."""
    given = _parser().parse_args()
    try:
        run = open_run(given.run, world_size=None, roots=dict(given.root))
        tokenizer = open_tokenizer(run.submitted, run.attempt.roots)
        model = load_weights(run.submitted, given.checkpoint, run.attempt.roots)
    except RunError as error:
        sys.stderr.write(f"{error.explained}\n")
        return 1
    drawn = generate(
        model,
        tokenizer,
        given.prompt,
        tokens=given.tokens,
        temperature=given.temperature,
        seed=given.seed,
    )
    sys.stdout.write(drawn.text + "\n")
    return 0


def load_weights(
    spec: JobSpec,
    folder: StoragePath,
    roots: Mapping[str, str] | None = None,
    *,
    point: ResumePoint | None = None,
) -> Model:
    """Return the spec's model on the CPU with a committed checkpoint's verified weights.

    With `point`, the folder must hold exactly that checkpoint.

    Raises:
        LaunchError, DataError: as for `build_model`.
        CheckpointError: the checkpoint is missing, is damaged, or belongs to another model.
    """
    manifest = read_manifest(folder)
    model = build_model(spec, roots)
    model.to_empty(device="cpu")
    model.reset_buffers()
    tensors = weight_tensors(model)
    reader = CheckedReader(folder, tied=tied_weights(model))
    reader.open(point or point_at(manifest, folder))
    reader.fit(kinds_of(tensors), parts=(WEIGHTS,))
    check_contents(folder, reader.manifest.files)
    reader.read(tensors)
    return model.eval()


@torch.no_grad()
def generate(
    model: Model,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    tokens: int,
    temperature: float,
    seed: int,
    proceed: Callable[[int], bool] = lambda _drawn: True,
) -> SampleResult:
    """Return the prompt and up to `tokens` generated tokens.

    Args:
        model: model that predicts the next token.
        tokenizer: tokenizer of the model's training data.
        prompt: text at the start.
        tokens: maximum number of generated tokens; fewer if the model ends the text.
        temperature: divisor of the logits; 0 selects the most likely token.
        seed: seed of the draws.
        proceed: called before each token with the number of tokens so far; the text ends if it
            returns False.
    """
    generator = torch.Generator().manual_seed(seed)
    # In training, a document follows its BOS token or, without BOS, the EOS token of the document
    # before.
    first = tokenizer.eos if tokenizer.bos is None else tokenizer.bos
    line = [first, *tokenizer.encode_batch([prompt.encode()])[0].tolist()]
    begun, ended = len(line), SampleEnd.MAX_TOKENS
    for drawn in range(tokens):
        if not proceed(drawn):
            ended = SampleEnd.TIME
            break
        window_1S = torch.tensor([line[-model.positions.seq_len :]])
        logits_V = model(window_1S)[0, -1, : tokenizer.vocab_size].float()
        if temperature == 0:
            token = int(logits_V.argmax())
        else:
            probs_V = torch.softmax(logits_V / temperature, dim=-1)
            token = int(torch.multinomial(probs_V, 1, generator=generator))
        if token == tokenizer.eos:
            ended = SampleEnd.END_OF_TEXT
            break
        line.append(token)
    return SampleResult(text=tokenizer.decode(line), tokens=len(line) - begun, ended=ended)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer.sample", description=__doc__)
    parser.add_argument("run", type=Path, help="run directory of the job; needs spec.json")
    add_root_argument(parser)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of a checkpoint")
    parser.add_argument("--prompt", default="", help="text to start with")
    parser.add_argument("--tokens", type=int, default=200, help="tokens to draw; %(default)s")
    parser.add_argument("--temperature", type=float, default=0.7, help="%(default)s; 0 is greedy")
    parser.add_argument("--seed", type=int, default=0, help="of the draws; %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
