"""The folder of a hub model: its `config.json`, checked and compared with a spec. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.data.files.places import read_json, resolve
from trainer.errors import LaunchError
from trainyard.spec.job import JobSpec
from trainyard.spec.sections.model import ModelSection

CONFIG = "config.json"
# Field in the spec, and the attribute of a config of transformers with the same value.
_SHAPE = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn_dim": "intermediate_size",
    "vocab_size": "vocab_size",
    "tied_embeddings": "tie_word_embeddings",
}


@dataclass(frozen=True)
class HubFolder:
    """A folder with the `config.json` of a model of transformers."""

    path: Path
    field: str
    """Field and value in the spec, for messages."""
    remote_code: bool
    """Whether the folder's Python files may run."""

    @classmethod
    def of(cls, section: ModelSection, roots: Mapping[str, str]) -> HubFolder:
        """Return the folder at `hugging_face` of a spec's section `model`, on this node.

        Raises:
            DataError: the root is unknown, or the place is missing or outside of its root.
        """
        place = section.hugging_face
        assert place is not None, "the spec names no folder"
        field = f"model.hugging_face={place!r}"
        return cls(resolve(place, field, roots)[1], field, section.remote_code)

    def content(self) -> dict[str, Any]:
        """Return `config.json`; reject a model with properties that no job supports.

        Raises:
            DataError: the file cannot be read.
            LaunchError: the model needs code that may not run, is quantized or an encoder-decoder,
                or has an unsupported loss.
        """
        content = read_json(self.path / CONFIG)
        for problem in self._problems(content):
            raise LaunchError(f"{self.field}: {CONFIG} {problem}", path=str(self.path))
        return content

    def _problems(self, content: Mapping[str, Any]) -> Iterator[str]:
        code = content.get("auto_map") or {}
        if code and not self.remote_code:
            yield (
                f"names Python files in auto_map ({', '.join(sorted(code))}); legal: "
                "model.remote_code=true (server and workers need TRAINYARD_ALLOW_CODE=true), or no "
                "auto_map if transformers has the model_type"
            )
        if any("--" in str(name) for name in code.values()):
            yield "names code of another repository in auto_map; legal: files in the folder"
        if "configuration_files" in content:
            yield "has configuration_files, so another file is the config; legal: config.json alone"
        if content.get("quantization_config"):
            yield (
                "has quantization_config, so the weights are quantized; legal: a folder with "
                "weights in float32, bfloat16 or float16, and no quantization_config"
            )
        if content.get("is_encoder_decoder"):
            yield "has is_encoder_decoder=true; legal: a causal language model"
        if content.get("output_router_logits"):
            yield (
                "has output_router_logits=true, which adds a loss that depends on the layout; "
                "legal: false"
            )

    def differences(self, config: Any, spec: JobSpec) -> Iterator[str]:
        """Yield a message for each shape field of the spec that differs from a loaded config."""
        for field, theirs in shape_of(config).items():
            ours = getattr(spec.architecture, field)
            if theirs != ours:
                yield f"{_SHAPE[field]} is {theirs!r}, but model.{field} is {ours!r}"


def shape_of(config: Any) -> dict[str, int | bool]:
    """Return the shape fields of a spec that a loaded config defines."""
    found = {field: _value(config, attribute) for field, attribute in _SHAPE.items()}
    return {field: value for field, value in found.items() if value is not None}


def _value(config: Any, attribute: str) -> Any:
    """Return an attribute of a config; absent attributes of heads get transformers' defaults."""
    found = getattr(config, attribute, None)
    if found is not None:
        return found
    heads = getattr(config, "num_attention_heads", None)
    if attribute == "num_key_value_heads":
        return heads
    if attribute == "head_dim" and heads:
        return config.hidden_size // heads
    return None
