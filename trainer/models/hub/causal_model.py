"""A causal language model of `transformers`, with the interface of an own model.

Shapes: B sequences, S tokens of a sequence, D model width, V vocabulary.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ParallelStyle
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from trainer.errors import LaunchError
from trainer.models.base import outermost
from trainer.models.hub.attention import (
    EAGER,
    EXPERTS,
    SDPA,
    attention_scope,
    needs_eager,
    register,
    supports_flex,
)
from trainer.models.hub.counts import count_parameters
from trainer.models.hub.dropout import check_dropout, rates, restart, use_keyed_dropout
from trainer.models.hub.folder import HubFolder
from trainer.models.hub.initial_values import InitialValue, initial_values
from trainer.models.hub.plans import pipeline_pieces, tensor_styles
from trainer.models.hub.trial import find_problem
from trainer.models.stateless_rng import Noise
from trainer.torch_versions import quiet_torchao
from trainyard.spec.job import JobSpec

MODEL = "causal"
"""Name of the model of transformers in `CausalModel`."""
DTYPE = torch.float32
ATTENDING = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
"""Values of `layer_types` in a config whose layers relate tokens only by attention."""
LARGE = 2**28
FACTORIES = frozenset({torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn})


class CausalModel(nn.Module):
    """Maps tokens to logits; in a pipeline stage, the modules of other stages are None.

    Args:
        causal: model of transformers, built for `attention.register`'s functions.
        field: field and value in the spec, for messages.
    """

    def __init__(self, causal: Any, *, field: str) -> None:
        super().__init__()
        self.causal = causal
        self._field, self._supports_flex = field, supports_flex(causal)
        self._source = use_keyed_dropout(causal, self.blocks)

    @property
    def block_classes(self) -> tuple[str, ...]:
        """Names of the classes of blocks that the architecture publishes, if it has such blocks."""
        return tuple(sorted({type(block).__name__ for block in self.blocks}))

    @property
    def blocks(self) -> list[nn.Module]:
        """The blocks that the architecture publishes, in the order of the model."""
        return outermost(self.causal, self.causal._no_split_modules or ())

    def forward(
        self, x: Tensor, *, noise: Noise | None = None, segments: Tensor | None = None
    ) -> Tensor:
        """Return logits [B, S, V], or the residual stream [B, S, D] without the head.

        Args:
            x: token ids [B, S], or the residual stream [B, S, D] without the embedding.
            noise: source of dropout masks; without a source, nothing is dropped.
            segments: document index of each token [B, S]; attention stays within documents.
                LaunchError if the architecture's attention takes no such mask.
        """
        base, head = self.causal.base_model, self.causal.get_output_embeddings()
        if head is None or x.ndim == 3:
            _skip_absent(base)
        self._source.noise = noise
        restart(self.causal)
        named: dict[str, Any] = {"input_ids" if x.ndim == 2 else "inputs_embeds": x}
        # A mask of ones has no effect, see `attention._masked`.
        ones_BS = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        named |= {"attention_mask": ones_BS, "use_cache": False}
        with attention_scope(segments, flex=self.uses_flex(x), field=self._field):
            if head is None:
                stream: Tensor = base(**named).last_hidden_state
                return stream
            logits: Tensor = self.causal(**named).logits
            return logits

    def check_exactness(self, *, draws: bool) -> None:
        """Refuse an architecture that cannot train exactly, by a forward pass on the meta device.

        Args:
            draws: whether the job draws initial values.

        Raises:
            LaunchError: a block relates tokens otherwise than by attention with our masks, training
                draws random numbers outside of dropout modules, or an initial value is of an
                unknown kind.
        """
        trial = deepcopy(self.causal)
        try:
            problem = find_problem(trial, outermost(trial, self.block_classes))
        except Exception as error:  # transformers may raise anything
            raise LaunchError(
                f"{self._field}: forward fails on the meta device, such as because it reads values "
                f"of its tokens: {type(error).__name__}: {error}"
            ) from error
        if problem is not None:
            raise LaunchError(
                f"{self._field}: {problem}; legal: causal attention through AttentionInterface of "
                "transformers in each block, and dropout only by nn.Dropout"
            )
        if not draws:
            return
        unknown = [name for name, value in self._initial_values.items() if value is None]
        if unknown:
            raise LaunchError(
                f"{self._field}: {unknown[0]} has an initial value of an unknown kind; legal: "
                "model.initial_weights, or an architecture with constants and normal draws"
            )

    def uses_flex(self, x: Tensor) -> bool:
        """Return whether flex attention may compute the attention of a forward pass with input `x`.

        Compiled flex attention has no backward pass on CPUs, and does not run on the meta device.
        """
        return self._supports_flex and x.is_cuda

    def initial_value(self, name: str) -> InitialValue:
        """Return the initial value of a parameter, by its name in this module."""
        value = self._initial_values[name]
        assert value is not None, "the check refuses unknown kinds, unless weights are loaded"
        return value

    @cached_property
    def _initial_values(self) -> Mapping[str, InitialValue | None]:
        with torch.device("meta"):
            model = type(self.causal)(self.causal.config)
        return {f"{MODEL}.{name}": value for name, value in initial_values(model).items()}

    def tensor_parallel_plan(self, *, loss_parallel: bool, **_: object) -> dict[str, ParallelStyle]:
        """Return the styles of the published plan, by pattern of names.

        Raises:
            LaunchError: the architecture publishes no plan, or a style is unknown.
        """
        styles = tensor_styles(self.causal, field=self._field, loss_parallel=loss_parallel)
        return {f"{MODEL}.{name}": style for name, style in styles.items()}

    def pipeline_parallel_plan(self) -> list[list[str]]:
        """Return the published pieces, as names of modules.

        Raises:
            LaunchError: no test has compared the stages of the architecture with the whole model.
        """
        pieces = pipeline_pieces(self.causal, field=self._field)
        return [[f"{MODEL}.{name}" for name in piece] for piece in pieces]


class SkippedModule(nn.Module):
    """Takes the place of an embedding, block or norm of another pipeline stage."""

    def forward(self, x: Tensor, *_: object, **__: object) -> Tensor:
        """Return the stream unchanged."""
        return x


def _skip_absent(base: nn.Module) -> None:
    """Replace the absent modules of a pipeline stage by the identity, in place."""
    for parent in [base, *(child for child in base.children() if isinstance(child, nn.ModuleList))]:
        for name, module in parent._modules.items():
            if module is None:
                parent._modules[name] = SkippedModule()


def build_hub_model(spec: JobSpec, roots: Mapping[str, str]) -> CausalModel:
    """Build the model of `model.hugging_face`: parameters on the meta device, buffers with values.

    Buffers are on torch's default device. Nothing is downloaded, and no weight is read.

    Raises:
        DataError: the folder or its config cannot be read.
        LaunchError: transformers is missing or cannot build the model, or the model differs from
            the spec or needs something that the job does not support.
    """
    folder = HubFolder.of(spec.model, roots)
    folder.content()
    # Compared before the model is built, because the folder's shape may exceed the memory.
    config = load_config(folder)
    if different := list(folder.differences(config, spec)):
        raise LaunchError(
            f"{folder.field} holds another model than the spec names: {'; '.join(different)}",
            path=str(folder.path),
        )
    model = _built(folder, config)
    _check_counts(model, folder, spec)
    _check_positions(model, folder, spec)
    _check_float32(model, folder, spec)
    check_dropout(model, spec)
    return model


def load_model(folder: HubFolder) -> CausalModel:
    """Build the model of a folder, without a comparison with a spec; errors as in the build."""
    folder.content()
    return _built(folder, load_config(folder))


def _built(folder: HubFolder, config: Any) -> CausalModel:
    library = _transformers(folder)
    register()
    try:
        with _parameters_on_meta():
            causal = library.AutoModelForCausalLM.from_config(
                config,
                dtype=DTYPE,
                attn_implementation=EAGER,
                experts_implementation=EXPERTS,
                trust_remote_code=folder.remote_code,
            )
        if not needs_eager(causal):
            causal.set_attn_implementation(SDPA)
    except Exception as error:  # transformers may raise anything
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, KeyError) and error.args == (EAGER,):
            why = "its attention does not use AttentionInterface"
        raise LaunchError(
            f"{folder.field}: transformers cannot build the model: {why}",
            path=str(folder.path),
        ) from error
    _refuse_recurrent(causal, folder)
    model = CausalModel(causal, field=folder.field)
    _check_rates(causal, folder)
    return model


def _refuse_recurrent(causal: Any, folder: HubFolder) -> None:
    """Reject layers that carry a state from token to token, across the ends of documents."""
    other = set(getattr(causal.config, "layer_types", None) or ()) - ATTENDING
    if other or causal._is_stateful:
        raise LaunchError(
            f"{folder.field}: {causal.config.model_type} has layers that are no attention "
            f"({', '.join(sorted(other)) or 'with a recurrent state'}); legal: attention in each "
            "layer",
            path=str(folder.path),
        )


def _transformers(folder: HubFolder) -> Any:
    """Import and return transformers."""
    try:
        with quiet_torchao():  # transformers imports it
            import transformers
    except ImportError as error:
        raise LaunchError(
            f"{folder.field} needs transformers on the nodes: {error}; install "
            "trainyard-programs[transformers] (docs/install.md)"
        ) from error
    return transformers


def load_config(folder: HubFolder) -> Any:
    """Return the config of a folder, as transformers reads it; errors as in the build."""
    try:
        config = _transformers(folder).AutoConfig.from_pretrained(
            folder.path, trust_remote_code=folder.remote_code, local_files_only=True
        )
    except Exception as error:  # transformers may raise anything
        raise LaunchError(
            f"{folder.field}: transformers cannot read config.json: {type(error).__name__}: "
            f"{error}",
            path=str(folder.path),
        ) from error
    if config.get_text_config() is not config:
        raise LaunchError(
            f"{folder.field}: model_type {config.model_type!r} combines several models; legal: a "
            "text model alone",
            path=str(folder.path),
        )
    return config


def _check_positions(model: CausalModel, folder: HubFolder, spec: JobSpec) -> None:
    """Reject sequences that are longer than a table of learned positions."""
    for name, module in model.causal.named_modules():
        learned = isinstance(module, nn.Embedding) and re.search(r"wpe|position", name)
        if learned and module.num_embeddings < spec.training.seq_len:
            raise LaunchError(
                f"training.seq_len={spec.training.seq_len}, but {name} of {folder.field} has "
                f"{module.num_embeddings} positions; legal: up to {module.num_embeddings}"
            )


def _check_counts(model: CausalModel, folder: HubFolder, spec: JobSpec) -> None:
    counted = spec.model.counted
    found = {} if counted is None else count_parameters(model.causal, model.blocks)
    for name, number in found.items():
        if number != getattr(counted, name):
            raise LaunchError(
                f"{folder.field} has {number} parameters of the kind {name}, but model.counted."
                f"{name} is {getattr(counted, name)}; `python -m trainer describe` prints the "
                "counts of the folder",
                path=str(folder.path),
            )


def _check_float32(model: CausalModel, folder: HubFolder, spec: JobSpec) -> None:
    """Reject a lower precision for parameters that the architecture keeps in float32.

    Buffers keep their dtype on every layout. Only `_keep_in_fp32_modules_strict` matters:
    transformers applies `_keep_in_fp32_modules` only to float16, which no job uses.
    """
    kept = model.causal._keep_in_fp32_modules_strict or ()
    names = [n for n, _ in model.causal.named_parameters() if any(part in n for part in kept)]
    for field in ("param_dtype", "weight_dtype"):
        dtype = getattr(spec.training, field)
        if names and dtype != "float32":
            raise LaunchError(
                f"{folder.field}: the architecture keeps {names[0]} in float32, but "
                f"training.{field}={dtype!r}; legal: float32"
            )


def _check_rates(causal: Any, folder: HubFolder) -> None:
    """Reject dropout of attention, and dropout that does not come from a dropout module.

    `KeyedDropout` can replace neither. A second model is built with a field of the config at 0. If
    it has as many dropout modules as the first model, the field drops features outside of modules.
    """
    for name, rate in rates(causal.config).items():
        config = type(causal.config).from_dict({**causal.config.to_dict(), name: 0.0})
        attends = name.startswith("att")
        with torch.device("meta"):
            without = None if attends else type(causal)(config)
        if without is None or _count(causal) == _count(without):
            raise LaunchError(
                f"{folder.field}: {name}={rate} in config.json drops "
                f"{'attention scores' if attends else 'features outside of dropout modules'}, "
                f"with masks that no layout could repeat; legal: {name}=0",
                path=str(folder.path),
            )


def _count(causal: nn.Module) -> int:
    return sum(getattr(module, "p", 0) > 0 for module in causal.modules() if _drops(module))


def _drops(module: nn.Module) -> bool:
    return "Dropout" in type(module).__name__


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Move each parameter to the meta device as a module gets it, so that no weight has memory.

    Buffers keep their values. A large tensor has no memory before that either: the experts of one
    layer may exceed the memory of a node.
    """

    def moved(_module: nn.Module, _name: str, parameter: nn.Parameter | None) -> Any:
        if parameter is None or parameter.is_meta:
            return None
        return nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)

    handle = register_module_parameter_registration_hook(moved)
    try:
        with _LargeOnMeta():
            yield
    finally:
        handle.remove()


class _LargeOnMeta(TorchFunctionMode):
    """Creates tensors of at least `LARGE` elements, which are never buffers, on the meta device."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in FACTORIES and args:
            size = args if isinstance(args[0], int) else args[0]
            if math.prod(size) >= LARGE:
                kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)
