"""The interface's options: those of one execution, and those of the process's environment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pyfuser import FusionDefinition, FusionExecutorCache
from pyfuser.frontend.options import environment


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """The environment is read once in a process."""
    environment.cache_clear()
    yield
    environment.cache_clear()


def product() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.add(fd.ops.matmul(x, x), 1.0))
    return fd


def test_a_product_that_the_library_may_not_compute() -> None:
    x, fd = torch.randn(4, 4), product()
    message = "Can not find a scheduler to schedule fusion segment"
    with pytest.raises(RuntimeError, match=message):
        fd.execute([x], _enable_options=["fuse_matmul"], _disable_options=["matmul_expr_eval"])
    torch.testing.assert_close(fd.execute([x])[0], x @ x + 1)
    with pytest.raises(RuntimeError, match=message):
        fd.execute([x], _disable_options=["matmul_expr_eval"])
    with pytest.raises(RuntimeError, match=message):
        FusionExecutorCache(product().fusion).execute([x], _disable_options=["matmul_expr_eval"])


def test_options_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVFUSER_ENABLE", "id_model_extra_validation, kernel_debug(all, 2),")
    monkeypatch.setenv("NVFUSER_DISABLE", "matmul_expr_eval")
    assert environment() == (("id_model_extra_validation", "kernel_debug"), ("matmul_expr_eval",))
    with pytest.raises(RuntimeError, match="Can not find a scheduler"):
        product().execute([torch.randn(4, 4)])


def test_an_unknown_option_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVFUSER_ENABLE", "bogus")
    with pytest.raises(RuntimeError, match="Unrecognized enable_option: bogus"):
        product().execute([torch.randn(4, 4)])
