"""Logits and loss against the reference implementation for the same weights, both ways."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.trainer.hugging_face.weights import MODELS, batch, ours, published, section, theirs
from tests.trainer.runs import JOB, SmallJob
from trainer.hugging_face.export import export
from trainer.hugging_face.folder import WeightsFolder
from trainer.hugging_face.load import read_weights
from trainer.models.decoder import Transformer
from trainyard.run.checkpoints.checkpoint_names import checkpoint_path
from trainyard.spec.layout import Layout

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
close = partial(torch.testing.assert_close, atol=1e-5, rtol=0)


def assert_equal(model: Transformer, reference: torch.nn.Module) -> None:
    tokens_BS, labels_BS = batch()
    with torch.no_grad():
        expected_BSV = reference(tokens_BS).logits
        expected = F.cross_entropy(expected_BSV.flatten(0, 1), labels_BS.flatten())
        assert expected_BSV.std() > 0.1, "the weights must make a difference"
        close(model(tokens_BS), expected_BSV)
        loss = model(tokens_BS, labels_BS) / labels_BS.numel()
        close(loss, expected)


@pytest.mark.parametrize("name", MODELS)
def test_their_weights_give_their_logits(name: str, tmp_path: Path) -> None:
    family, arch = MODELS[name]
    reference = theirs(family, arch)
    folder = WeightsFolder(published(tmp_path / "theirs", name))
    folder.check(family, arch)
    model = ours(family, arch)
    read_weights(model, folder)
    assert_equal(model, reference)


# A spec cannot set the original context of "llama, scaled".
@pytest.mark.parametrize("name", [name for name in MODELS if name != "llama, scaled"])
def test_our_export_gives_them_our_logits(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    family, arch = MODELS[name]
    published(tmp_path / "data" / "weights", name)  # with heads that reach far enough back
    job = SmallJob(tmp_path).changed(
        tmp_path,
        model={**section(family, arch), "initial_weights": "data:weights", "dropout": 0.0},
        training={"steps": 2, "seq_len": 48},
        lr_schedule={"warmup_steps": 1},
    )
    job.launch(1, Layout())
    checkpoint = job.storage / checkpoint_path(JOB, 1, 2)
    export(checkpoint, tmp_path / "export", shard_bytes=100_000)
    assert len(list((tmp_path / "export").glob("*.safetensors"))) > 2
    reference: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    model = ours(family, arch)
    read_weights(model, WeightsFolder(tmp_path / "export"))
    assert_equal(model, reference)
    if arch.rope_scaling is not None:
        unscaled = ours(family, dataclasses.replace(arch, rope_scaling=None))
        unscaled.load_state_dict(model.state_dict())
        with pytest.raises(AssertionError, match="not close"):
            assert_equal(unscaled, reference)
