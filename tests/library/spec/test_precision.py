"""Requirements of low precision on shapes and hardware, and the abilities of known devices."""

from typing import Any

import pytest

from trainyard.base.problems import SpecError
from trainyard.spec.job import parse_job_spec
from trainyard.spec.rules import check_job_spec
from trainyard.training.known_devices import DEVICES, Slot, known_device, peak_flops

GIB = 2**30
H100 = Slot("cuda", "NVIDIA H100 80GB HBM3", 80 * GIB)
A100 = Slot("cuda", "NVIDIA A100-SXM4-80GB", 80 * GIB)
B200 = Slot("cuda", "NVIDIA B200", 180 * GIB)
L4 = Slot("cuda", "NVIDIA L4", 24 * GIB)
UNKNOWN = Slot("cuda", "NVIDIA X1", 80 * GIB)
CPU = Slot("cpu", "AMD EPYC 9654 96-Core Processor", 8 * GIB)


def problems_of(document: dict[str, Any], *slots: Slot) -> list[tuple[str, str]]:
    try:
        check_job_spec(parse_job_spec(document), slots=slots)
    except SpecError as error:
        return [(problem.pointer, problem.detail) for problem in error.problems]
    return []


def job(recipe: str, tp: int = 1, **sections: dict[str, Any]) -> dict[str, Any]:
    resources = {"world_size": tp * sections.get("parallelism", {}).get("cp", 1)}
    return {
        "parallelism": {"tp": tp, "dp_shard": 1} | sections.pop("parallelism", {}),
        "quantization": {"recipe": recipe} | sections.pop("quantization", {}),
        "resources": resources | sections.pop("resources", {}),
        "training": {"param_dtype": "bfloat16"} | sections.pop("training", {}),
        **sections,
    }


TENSORWISE, MX = "float8_tensorwise", "mxfp8"
BLOCKS = {"attention": ["attention"], "feed_forward": ["feed_forward"]}
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "model width",
        job(TENSORWISE, model={"dim": 72}),
        "/model/dim",
        "dim=72 gives layers that are 72 wide on each rank, but float8_tensorwise needs multiples "
        "of 16; nearest legal: 64, 80",
    ),
    (
        "feed-forward on two ranks",
        job(TENSORWISE, 2, model={"ffn_dim": 208}),
        "/model/ffn_dim",
        "ffn_dim=208 gives layers that are 104 wide on each rank, but float8_tensorwise needs "
        "multiples of 16; nearest legal: 192, 224",
    ),
    (
        "keys on two ranks",
        job(MX, 2, model={"n_heads": 8, "n_kv_heads": 4, "dim": 128, "ffn_dim": 256}),
        "",
        "",
    ),
    (
        "few keys on two ranks",
        job(MX, 2, model={"dim": 128, "n_heads": 8, "n_kv_heads": 2, "ffn_dim": 256}),
        "/model/n_kv_heads",
        "n_kv_heads=2 gives layers that are 16 wide on each rank, but mxfp8 needs multiples of 32; "
        "nearest legal: 4",
    ),
    (
        "tokens",
        job(TENSORWISE, training={"seq_len": 120}),
        "/training/seq_len",
        "seq_len=120 gives each rank 120 tokens of a sequence, but float8_tensorwise needs "
        "multiples of 16; nearest legal: 112, 128",
    ),
    (
        "tokens of a context parallel rank",
        job(MX, training={"seq_len": 224}, parallelism={"cp": 2}),
        "/training/seq_len",
        "seq_len=224 gives each rank 112 tokens of a sequence, but mxfp8 needs multiples of 32; "
        "nearest legal: 192, 256",
    ),
    (
        "weights' gradients in high precision",
        job("float8_rowwise_with_gw_hp", training={"seq_len": 120}),
        "",
        "",
    ),
    (
        "all excluded",
        job(MX, model={"dim": 72}, quantization={"exclude": ["attention", "feed_forward"]}),
        "",
        "",
    ),
    (
        "some excluded",
        job(TENSORWISE, model={"ffn_dim": 200}, quantization={"exclude": ["feed_forward"]}),
        "",
        "",
    ),
    (
        "narrow keys excluded",
        job(MX, model={"dim": 128, "n_heads": 8, "n_kv_heads": 1}, quantization={"min_dim": 32}),
        "",
        "",
    ),
    (
        "one layer excluded",
        job(TENSORWISE, model={"ffn_dim": 200}, quantization={"exclude": ["layers.0"]}),
        "/model/ffn_dim",
        "ffn_dim=200 gives layers that are 200 wide on each rank, but float8_tensorwise needs "
        "multiples of 16; nearest legal: 192, 208",
    ),
    (
        "compiled blocks of shared matrices, recomputed whole",
        job("none", 2, activation_checkpoint={"mode": "full"}, compile={"enabled": True}),
        "/activation_checkpoint/mode",
        "mode='full' with compile.enabled=true and tp=2: the compiler cannot recompute the "
        "communication of a block; legal: none, selective, memory_budget, or "
        "compile.enabled=false",
    ),
    (
        "a budget without a compiler",
        job("none", activation_checkpoint={"mode": "memory_budget"}, compile={"enabled": False}),
        "/activation_checkpoint/mode",
        "mode='memory_budget' needs compile.enabled=true: torch.compile decides what is "
        "kept; legal without it: none, selective, full",
    ),
]


@pytest.mark.parametrize(
    ("document", "pointer", "detail"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_shapes_are_checked_on_each_rank(
    document: dict[str, Any], pointer: str, detail: str
) -> None:
    assert problems_of(document) == ([(pointer, detail)] if pointer else [])


FLOAT8_RECIPES = "none, float8_tensorwise, float8_rowwise, float8_rowwise_with_gw_hp"


@pytest.mark.parametrize(
    ("recipe", "slots", "detail"),
    [
        (TENSORWISE, [H100, L4], ""),
        (TENSORWISE, [A100, H100], ""),
        (TENSORWISE, [UNKNOWN], ""),
        (TENSORWISE, [CPU], ""),
        (TENSORWISE, [A100, CPU], ""),
        (TENSORWISE, [], ""),
        (MX, [B200], ""),
        (
            TENSORWISE,
            [A100, A100],
            "recipe='float8_tensorwise' needs compute capability 8.9 or higher, but the nodes have "
            "A100 SXM (8.0); legal here: none",
        ),
        (
            MX,
            [H100, L4],
            "recipe='mxfp8' needs compute capability 10.0 or higher, but the nodes have H100 "
            f"SXM (9.0), L4 (8.9); legal here: {FLOAT8_RECIPES}",
        ),
    ],
)
def test_hardware_without_the_numbers_is_refused(
    recipe: str, slots: list[Slot], detail: str
) -> None:
    assert problems_of(job(recipe), *slots) == (
        [("/quantization/recipe", detail)] if detail else []
    )


def test_only_slots_of_the_kind_asked_for_count() -> None:
    on_gpus = job(TENSORWISE, resources={"device": "cuda"})
    assert [pointer for pointer, _ in problems_of(on_gpus, A100, CPU)] == ["/quantization/recipe"]
    assert problems_of(job(TENSORWISE, resources={"device": "cpu"}), A100, CPU) == []


def test_kernels_that_give_bfloat16_only_are_no_match_for_float32() -> None:
    training = {"param_dtype": "float32"}
    document = job("float8_rowwise", training=training)
    expected = [
        (
            "/training/param_dtype",
            "param_dtype='float32', but products of float8_rowwise on a GPU give bfloat16 only; "
            "legal: bfloat16",
        )
    ]
    assert problems_of(document, H100) == expected
    assert problems_of(job("float8_rowwise", training=training, resources={"device": "cuda"})) == (
        expected
    )
    assert problems_of(document, CPU) == problems_of(document) == []
    assert problems_of(job(TENSORWISE, training=training), H100) == []


def test_symmetric_memory_needs_a_direct_path_between_gpus() -> None:
    document = job("none", 2, parallelism={"async_tp": True}, compile={"enabled": True})
    assert problems_of(document, H100) == problems_of(document, UNKNOWN) == []
    assert problems_of(document, L4) == [
        (
            "/parallelism/async_tp",
            "async_tp=true needs GPUs that reach each other's memory by NVLink, but the nodes have "
            "L4 (8.9); legal here: false",
        )
    ]
    assert [pointer for pointer, _ in problems_of(document, CPU)] == ["/parallelism/async_tp"]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L20", "L20"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA H800", "H800 SXM"),
        ("NVIDIA H800 PCIe", "H800 PCIe"),
        ("NVIDIA A800-SXM4-80GB", "A800 SXM"),
        ("NVIDIA A800 80GB PCIe", "A800 PCIe"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("Quadro RTX 6000", None),
        ("Tesla V100-SXM2-16GB", "V100 SXM"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("AMD EPYC 9654 96-Core Processor", None),
    ],
)
def test_devices_are_known_by_the_names_that_drivers_give(name: str, short: str | None) -> None:
    device = known_device(name)
    assert (device.name if device else None) == short


def test_peaks_are_dense_and_unknown_ones_are_said_to_be() -> None:
    assert peak_flops("NVIDIA H200", "bfloat16") == pytest.approx(989.4e12)
    assert peak_flops("NVIDIA A100-SXM4-80GB", "float8") is None
    assert peak_flops("NVIDIA X1", "bfloat16") is None
    for _, device in DEVICES:
        peaks = [
            device.peak_flops[p] for p in ("tf32", "bfloat16", "float8") if p in device.peak_flops
        ]
        assert peaks == sorted(peaks)
        assert ("float8" in device.peak_flops) == device.can("float8")
