"""The reports of the benchmarks of models and architectures show the measurements."""

from __future__ import annotations

import math

import torch

from benchmarks.models import library
from benchmarks.models.results import ModelResults, ModelRow
from benchmarks.zoo.results import ZooResults, ZooRow


def model_results() -> ModelResults:
    rows = [
        ModelRow(
            "GPT-2",
            parameters=4_300_000,
            seconds={
                "forward": {"eager": 0.2, "inductor": 0.1, "pyfuser": 0.05, "library": 0.04},
                "training": {"eager": 0.4, "inductor": 0.4, "pyfuser": 0.2},
            },
            errors={
                "output": {"eager": 1e-6, "pyfuser": 0.5},
                "gradients": {"eager": 1e-6, "pyfuser": 1.5},
            },
            first_step={"inductor": 20.0, "pyfuser": 2.0, "pyfuser, disk": 1.0, "aot_eager": 1.5},
            peak_bytes={"eager": 3 << 20, "pyfuser": 2 << 20},
            breakdown={"forward": {"library": 0.04, "kernels": 0.005, "launches": 31.0}},
            kernels=27,
        ),
        ModelRow("GPT-2", "bfloat16", seconds={"forward": {"eager": 0.3, "pyfuser": 0.1}}),
        ModelRow("T5", seconds={"forward": {"eager": 1.0}}, failures=["steady: it broke"]),
    ]
    machine = {"cpu": "one", "threads": 2, "torch": "2", "transformers": "5", "python": "3"}
    tokens = {
        "new lengths": {"eager": 3e-3, "inductor": 2.5e-3, "pyfuser": 2e-3},
        "seen lengths": {"eager": 3e-3, "pyfuser": 1e-3},
        "same tokens": True,
    }
    return ModelResults(machine, rows, {"eager": 1e-6}, decoding={"GPT-2, growing cache": tokens})


def test_results_of_models_survive_json() -> None:
    assert ModelResults.from_json(model_results().to_json()) == model_results()


def test_the_tables_of_models_say_what_was_measured_and_what_failed() -> None:
    text = model_results().sections()["models"]
    means = "| forward, float32 | 1 | 4.00x | 2.00x | 2.00x | 4.00x (GPT-2) | 94% | 62% |"
    assert means in text
    assert "| forward, bfloat16 | 1 | 3.00x |  |  | 3.00x (GPT-2) |  |  |" in text
    assert "| training, float32 | 1 | 2.00x | 1.00x | 2.00x | 2.00x (GPT-2) |  |  |" in text
    of_model = "| 50.0 ms | 200.0 ms | 100.0 ms | 40.0 ms | 4.00x | 2.00x | 94% |"
    assert f"| GPT-2 | 4.3M {of_model}" in text
    assert "| GPT-2 | 40.0 ms | 5.00 ms |  |  | 31 |" in text
    token = "| 2.00 ms | 3.00 ms | 2.50 ms | 1.50x | 1.25x | yes |"
    assert f"| GPT-2, growing cache, new lengths {token}" in text
    assert "| 1.00 ms | 3.00 ms |  | 3.00x |  | yes |" in text
    assert (
        "| GPT-2 | 2.00 s | 1.00 s | 20.00 s | 1.50 s | 10.00x | 1.50x |  | 2.0 MiB | 3.0 MiB |"
        in text
    )
    assert "steady: it broke" in text
    assert "| eager | 1.00 µs |" in text


def test_measuring_a_part_of_the_models_again_keeps_the_others() -> None:
    again = ModelResults({"cpu": "two"}, [ModelRow("GPT-2", kernels=1), ModelRow("ViT")])
    merged = again.merged(model_results())
    assert [row.name for row in merged.rows] == ["GPT-2", "GPT-2", "T5", "ViT"]
    assert merged.rows[0].kernels == 1 and merged.rows[0].first_step["pyfuser"] == 2.0
    assert merged.machine == {"cpu": "two"} and "GPT-2, growing cache" in merged.decoding


def test_the_library_s_part_of_a_call_runs_again_by_itself() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    x = torch.randn(3, 4)
    calls = library.library_calls(lambda: layer(x).sum().backward())
    names = [function.overloadpacket.__name__ for function, _, _ in calls]
    assert names == ["addmm", "addmm", "mm", "mm", "mm"]
    gradients = [each.grad.clone() for each in layer.parameters() if each.grad is not None]
    library.replay(calls)()
    assert all(map(torch.equal, gradients, [each.grad for each in layer.parameters()]))


def zoo_results() -> ZooResults:
    rows = [
        ZooRow(
            "Swin",
            parameters=1_300_000,
            errors={
                "gradients": {"eager": 1e-6, "pyfuser": 1.5},
                "state": {"eager": 1e-6, "pyfuser": 0.5},
            },
            seconds={"eager": 0.2, "pyfuser": 0.1},
            first_step=3.0,
            graphs=1,
            kernels=12,
        ),
        ZooRow(
            "RWKV",
            errors={"gradients": {"eager": 1e-6, "pyfuser": math.inf}},
            seconds={"eager": 0.1, "pyfuser": 0.2},
            graph_breaks={"a loop": 2},
            fallbacks=["a fusion of a | b isn't supported"],
        ),
        ZooRow("Mamba", failure="it broke"),
    ]
    machine = {"cpu": "one", "threads": 2, "torch": "2", "python": "3"}
    return ZooResults({**machine, "transformers": "5", "timm": "1"}, rows)


def test_results_of_the_zoo_survive_json() -> None:
    assert ZooResults.from_json(zoo_results().to_json()) == zoo_results()


def test_the_tables_of_the_zoo_say_what_falls_short() -> None:
    swin, rwkv, mamba = zoo_results().rows
    assert swin.problems() == []
    assert rwkv.problems() == [
        "infx of eager's error",
        "slower than eager",
        "fallback: a fusion of a | b isn't supported",
    ]
    assert mamba.problems() == ["it broke"]
    text = zoo_results().sections()["zoo"]
    assert "| 3 | 1.00x | 0.50x (RWKV) | 1 | infx (RWKV) | 1 | 1 | 1 |" in text
    line = (
        "| Swin | 1.3M | 100.0 ms | 200.0 ms |  | 2.00x |  | 1.50x |  | 3.0 s | 1 | 0 | 0 | 12 |  |"
    )
    assert line in text
    assert "fallback: a fusion of a / b isn't supported |" in text


def test_results_of_the_zoo_take_the_place_of_earlier_ones() -> None:
    again = ZooResults({"cpu": "two"}, [ZooRow("RWKV"), ZooRow("Hiera")])
    merged = again.merged(zoo_results())
    assert [row.name for row in merged.rows] == ["Swin", "RWKV", "Mamba", "Hiera"]
    assert merged.rows[1] == ZooRow("RWKV") and merged.machine == {"cpu": "two"}
