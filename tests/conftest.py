"""Fixtures that all tests share: golden texts, kept in tests/golden/.

`golden("name.txt", text)` compares with the file; `pytest --update-golden` writes it instead.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

# Asserts in helpers report the compared values, as asserts in tests do.
pytest.register_assert_rewrite(
    "tests.support",
    "tests.legacy_defects.running",
    "tests.ops.checked_cases",
    "tests.ops.library_definitions",
    "tests.ops.read_definitions",
    "tests.segment.fusions",
    "tests.torch_compile.errors_of_results",
)

_FOLDER = Path(__file__).parent / "golden"
_CUBINS = pytest.StashKey[str]()
_TESTS_PER_COLLECTION = 100
_tests_so_far = itertools.count(1)


def pytest_configure() -> None:
    """Kernels and graphs in caches belong to one run; the workers of a run share them.

    Dynamo's work for its own logs is switched off.  A function that has been compiled too often
    fails, instead of running as eager does from then on, which would compare eager with itself.
    What test modules draw while they are imported is the same in every run.
    """
    from tests.support.dynamo_overheads import switch_off

    switch_off()
    torch.manual_seed(0)
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    for cache in ("TORCHINDUCTOR_CACHE_DIR", "PYFUSER_CACHE_DIR"):
        if cache not in os.environ:
            folder = tempfile.mkdtemp(prefix="pyfuser-tests-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            os.environ[cache] = folder


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that rewrites golden texts."""
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the texts in tests/golden"
    )
    parser.addoption(
        "--long", action="store_true", help="run the tests marked `long`, too (-m long: only them)"
    )
    parser.addoption(
        "--emulate", action="store_true", help="run CPU tensors by CUDA kernels, emulated"
    )
    parser.addoption(
        "--on-gpu", action="store_true", help="launch the emulated kernels on a real GPU instead"
    )
    parser.addoption(
        "--nvrtc", action="store_true", help="compile all emulated kernels to cubins at the end"
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """With `--nvrtc`, the kernels of an earlier run are forgotten."""
    if session.config.getoption("--nvrtc") and not hasattr(session.config, "workerinput"):
        from tests.cuda.kernel_texts import FOLDER

        shutil.rmtree(FOLDER, ignore_errors=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With `--nvrtc`, compiles all kernels that the tests had; the run fails if one doesn't."""
    config = session.config
    if config.getoption("--nvrtc") and not hasattr(config, "workerinput"):
        from tests.cuda.kernel_texts import report

        config.stash[_CUBINS], passed = report()
        if not passed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Says by what the kernels of an emulated run were checked."""
    if config.getoption("--emulate"):
        from pyfuser.devices.cuda.emulator.harness import has_address_sanitizer

        checks = "races, barriers, bounds"
        if has_address_sanitizer():
            checks += ", AddressSanitizer, UndefinedBehaviorSanitizer"
        terminalreporter.write_line(f"emulated CUDA kernels, checked for: {checks}")
    if _CUBINS in config.stash:
        terminalreporter.write_line(config.stash[_CUBINS])


@pytest.fixture(autouse=True)
def no_earlier_graphs() -> None:
    """A test's functions are compiled for it, though other parameters have compiled them before."""
    torch._dynamo.reset()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the file of a name in tests/golden, or writes it there."""

    def compare(name: str, text: str) -> None:
        path = _FOLDER / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.exists(), f"{path.name}: run pytest --update-golden to write it"
        assert text == path.read_text(encoding="utf-8")

    return compare


def pytest_collection_finish() -> None:
    """What has been made so far stays: torch, and a description of each test.

    The garbage collector needn't go through it again, which took a tenth of the tests' time.
    """
    _keep_out_of_collections()
    gc.set_threshold(*gc.get_threshold()[:2], 1 << 30)  # no collection of everything by itself


def pytest_runtest_teardown() -> None:
    """From time to time, the same for what stays of the tests: the kernels in the caches."""
    if next(_tests_so_far) % _TESTS_PER_COLLECTION == 0:
        _keep_out_of_collections()


def _keep_out_of_collections() -> None:
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out long tests, and skips tests of the CPU's own kernels in an emulated run."""
    if not config.getoption("--long"):
        left_out = [item for item in items if item.get_closest_marker("long") is not None]
        items[:] = [item for item in items if item.get_closest_marker("long") is None]
        config.hook.pytest_deselected(items=left_out)
    if config.getoption("--emulate"):
        skip = pytest.mark.skip(reason="about the CPU's own kernels")
        for item in items:
            if item.get_closest_marker("cpu") is not None:
                item.add_marker(skip)


@pytest.fixture(autouse=True)
def kept_thread_count() -> Iterator[None]:
    """What a test sets, or a command that it runs, is no other test's number of threads."""
    before = torch.get_num_threads()
    yield
    if torch.get_num_threads() != before:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """A test has the same random numbers in each run."""
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def emulation(request: pytest.FixtureRequest) -> Iterator[None]:
    """With `--emulate`, all tests run their kernels as emulated CUDA; `--nvrtc` keeps the texts."""
    with ExitStack() as stack:
        if request.config.getoption("--nvrtc"):
            from tests.cuda.kernel_texts import kept_texts

            stack.enter_context(kept_texts())
        if request.config.getoption("--on-gpu"):
            from tests.cuda.on_gpu import launched_on_gpu

            stack.enter_context(launched_on_gpu())
        if request.config.getoption("--emulate"):
            from pyfuser.devices.cuda.emulator.runtime import emulated

            stack.enter_context(emulated())
        yield


pytest_plugins = ["tests.support.poison", "tests.torch_compile.opdb.report"]
# Machines with a GPU need not have llvmlite, which the CPU's kernels need.
if find_spec("llvmlite") is not None:
    pytest_plugins.append("tests.support.other_device")
