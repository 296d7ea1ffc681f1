"""`show FILE.py`: prints each compiler stage of every fusion that a script defines.

Runs the script with `FusionDefinition.execute` and `manual_execute` replaced: a call is recorded
and answered by the eager evaluator, so a GPU schedule can be shown on a machine without a GPU.  A
definition that the script never runs is shown with inputs made up from its shapes.  Graphs of
torch.compile are compiled and run as usual, and shown with their fusions.  The script's own output
goes to standard error.  If the script fails, the definitions up to the failure are shown.
"""

from __future__ import annotations

import ast
import contextlib
import re
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.syntax import Syntax

from .. import compiler
from ..analysis.layouts import input_layouts
from ..devices.cuda import nvrtc
from ..devices.registry import target_of
from ..dtypes import is_floating, to_torch
from ..errors import DefinitionError, PyfuserError, expected
from ..frontend.definition import FusionDefinition
from ..frontend.executors import flattened
from ..ir.fusion import Fusion
from ..ir.scalars import Integer
from ..ir.vals import Scalar, TensorView, Val
from ..lower.lowering import KERNEL_PASSES, SCHEDULE_PASSES, build_nests
from ..ops.binding import bind
from ..ops.evaluator import evaluate
from ..trace import Texts, watching_graphs

# The stages of a torch.compile graph, then those of each fusion, of a graph or of the script.
GRAPH_STAGES = ("graph", "graph_passes", "regions", "call")
STAGES = (
    *GRAPH_STAGES,
    "fusion", "preseg", "segments", "parameters", "scheduled", "lower", "kernel",
    "llvm", "asm", "cuda", "ptx",
)  # fmt: skip
# The stages that only one kind of device has; all devices have the others.
_CPU_STAGES = ("llvm", "asm")
_CUDA_STAGES = ("cuda", "ptx")
_LANGUAGES = {"fusion": "python", "llvm": "llvm", "asm": "gas", "cuda": "cuda", "ptx": "ptx"}
# The architectures to choose from if there is no NVRTC to list them.
_ARCHITECTURES = tuple(
    f"sm_{number}" for number in (75, 80, 86, 87, 88, 89, 90, 100, 103, 107, 110, 120, 121)
)
# For sizes that the definition leaves open: small, and not a multiple of any vector width.
_MADE_UP_SIZE = 100


@dataclass(slots=True)
class Recorded:
    """A definition of the script and the inputs of its run (None: it wasn't run)."""

    definition: FusionDefinition
    inputs: list[Any] | None = None
    by_hand: bool = False


class RecordedGraph(Texts):
    """A graph that torch compiles for the script: its stages, and its fusions with inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.fusions: list[tuple[Fusion, Sequence[Any]]] = []

    def stage(self, name: str, value: Any) -> None:
        """Keeps the text of a stage of the graph; the fusions, to show the stages of each."""
        if name == "fusions":
            self.fusions = value
        else:
            super().stage(name, value)

    def after(self, name: str, value: object) -> None:
        """Keeps the text; the list of passes, in order, is a stage too."""
        super().after(name, value)
        self.stages["graph_passes"] = "".join(f"{each}\n" for each in self.passes)


Shown = tuple[str, Texts]  # with a title


@dataclass(slots=True)
class _Recorder:
    """Keeps the definitions, in the order in which they were finished, and the graphs."""

    found: dict[int, Recorded] = field(default_factory=dict)
    graphs: list[RecordedGraph] = field(default_factory=list)

    def graph(self) -> RecordedGraph:
        self.graphs.append(RecordedGraph())
        return self.graphs[-1]

    def defined(self, definition: FusionDefinition) -> Recorded:
        return self.found.setdefault(id(definition), Recorded(definition))

    def run(self, definition: FusionDefinition, inputs: Sequence[Any], by_hand: bool) -> Any:
        valid, message = definition.validate_definition()
        if not valid:
            raise DefinitionError(message)
        recorded, flat = self.defined(definition), flattened(inputs)
        outputs = evaluate(definition.fusion.definition, flat)
        if recorded.inputs is None:  # inputs that don't fit aren't shown
            recorded.inputs, recorded.by_hand = flat, by_hand
        return outputs


def run(
    file: str,
    device: str,
    stage: str | None,
    arguments: Sequence[str] = (),
    after: str | None = None,
) -> int:
    """Prints the stages (all, or `stage`) of the fusions of the script `file` for `device`.

    With `after`, prints the result of the pass of that name.
    """
    errors = Console(stderr=True, highlight=False)
    if complaint := _complaint(device, stage):
        errors.print(complaint, markup=False, soft_wrap=True)
        return 2
    if not Path(file).is_file():
        errors.print(expected("show", "a script", file))
        return 2
    recorder, failure = recording(file, arguments)
    found = list(recorder.found.values())
    if not found and not recorder.graphs:
        what = f"a FusionDefinition or a torch.compile with pyfuser in {file}"
        errors.print(expected("show", what, "none"), soft_wrap=True)
    try:
        _print_all(found, recorder.graphs, device, stage, after)
    except PyfuserError as error:
        errors.print(str(error), markup=False, soft_wrap=True)
        return 1
    if failure is not None:
        errors.print(expected("show", "a script that ends", failure), markup=False, soft_wrap=True)
    return 0 if (found or recorder.graphs) and failure is None else 1


def _print_all(
    recorded: Sequence[Recorded],
    graphs: Sequence[RecordedGraph],
    device: str,
    stage: str | None,
    after: str | None,
) -> None:
    """Every definition of the script, then every graph and its fusions."""
    titled = [(f"graph {number} of {len(graphs)}", each) for number, each in enumerate(graphs, 1)]
    is_of_graphs = stage in GRAPH_STAGES or any(after in graph.passes for graph in graphs)
    if graphs and is_of_graphs:  # fusions don't have this stage, and take time
        shown: list[Shown] = list(titled)
    else:
        shown = [
            (f"fusion {number} of {len(recorded)}", stages_of(each, device))
            for number, each in enumerate(recorded, 1)
        ]
        for title, graph in titled:
            shown += [(title, graph), *_of_fusions(title, graph, device)]
    if after is not None:
        shown = _only(shown, lambda texts: texts.passes, after, "show --after", "the passes ")
    elif stage is not None:
        shown = _only(shown, lambda texts: texts.stages, stage, "show")
    for title, texts in shown:
        _print(texts, title, device, stage, after)


def _of_fusions(title: str, graph: RecordedGraph, device: str) -> Iterator[Shown]:
    """The fusions of a graph."""
    for number, (fusion, inputs) in enumerate(graph.fusions, 1):
        of_fusion = f"{title}, fusion {number} of {len(graph.fusions)}"
        yield of_fusion, _stages_of_call(fusion, inputs, device)


def _only(
    shown: list[Shown],
    names: Callable[[Texts], Mapping[str, str]],
    name: str,
    operation: str,
    what: str = "",
) -> list[Shown]:
    """The entries that have a stage or pass of this name.  DefinitionError if there are none."""
    found = [each for each in shown if name in names(each[1])]
    if shown and not found:
        known = ", ".join(dict.fromkeys(each for _, texts in shown for each in names(texts)))
        raise DefinitionError(expected(operation, f"one of {what}{known}", name))
    return found


def _complaint(device: str, stage: str | None) -> str | None:
    """What is wrong with the arguments, before the script runs; None if nothing is."""
    if device != "cpu":
        if not re.fullmatch(r"sm_\d+[af]?", device):
            return expected("show", "the device cpu or sm_NN", device)
        # Without NVRTC only PTX is unavailable.
        known = nvrtc.supported_architectures() if nvrtc.is_available() else _ARCHITECTURES
        if device.rstrip("af") not in known:
            return expected("show", f"the device cpu or one of {', '.join(known)}", device)
    missing, hint = (
        (_CUDA_STAGES, "add --device sm_90")
        if device == "cpu"
        else (_CPU_STAGES, "leave --device out")
    )
    if stage in missing:
        stages = ", ".join(name for name in STAGES if name not in missing)
        return expected("show", f"one of {stages} for {device}", stage, hint)
    return None


def record(file: str, arguments: Sequence[str] = ()) -> tuple[list[Recorded], str | None]:
    """Runs the script: its definitions, each with the inputs of its first run, and its failure.

    The failure is None for a script that ran to its end.
    """
    recorder, failure = recording(file, arguments)
    return list(recorder.found.values()), failure


def recording(file: str, arguments: Sequence[str] = ()) -> tuple[_Recorder, str | None]:
    """Runs the script: its definitions and graphs, and its failure (see `record`)."""
    recorder, failure = _Recorder(), None
    with (
        _intercepted(recorder),
        watching_graphs(recorder.graph),
        contextlib.redirect_stdout(sys.stderr),
        _replaced(sys, "argv", [file, *arguments]),
        _replaced(sys, "path", [str(Path(file).resolve().parent), *sys.path]),
    ):
        try:
            _run_script(Path(file).resolve())
        except SystemExit as end:
            failure = None if end.code in (None, 0) else f"SystemExit: {end.code}"
        except Exception as error:
            failure = _text_of(error, file)
    return recorder, failure


def _run_script(path: Path) -> None:
    """Runs it as `python FILE` does, or as `python -m` if it imports from its own package.

    Only then as `python -m`, which runs the package's own code first and doesn't search the folder.
    """
    root = path.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    if root == path.parent or not _has_relative_imports(path):
        runpy.run_path(str(path), run_name="__main__")
        return
    sys.path.insert(0, str(root))
    name = ".".join(path.relative_to(root).with_suffix("").parts)
    runpy.run_module(name, run_name="__main__")


def _has_relative_imports(path: Path) -> bool:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # running it reports the error
        return False
    return any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree))


def _text_of(error: Exception, file: str) -> str:
    """The last line of the traceback, and the last line of the script that it came from."""
    path = Path(file).resolve()
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == path
    ]
    where = f" ({file}:{lines[-1]})" if lines else ""
    return traceback.format_exception_only(error)[-1].strip() + where


@contextlib.contextmanager
def _replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """An attribute with another value, while the script runs in this process."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def _intercepted(recorder: _Recorder) -> Iterator[None]:
    finish = FusionDefinition.__exit__

    def leave(self: FusionDefinition, kind: Any, error: Any, trace: Any) -> None:
        finish(self, kind, error, trace)
        if kind is None:
            recorder.defined(self)

    def execute(self: FusionDefinition, inputs: Sequence[Any], **options: object) -> Any:
        return recorder.run(self, inputs, by_hand=False)

    def manual_execute(self: FusionDefinition, inputs: Sequence[Any], _: object = None) -> Any:
        return recorder.run(self, inputs, by_hand=True)

    with (
        _replaced(FusionDefinition, "__exit__", leave),
        _replaced(FusionDefinition, "execute", execute),
        _replaced(FusionDefinition, "manual_execute", manual_execute),
    ):
        yield


def _print(texts: Texts, title: str, device: str, stage: str | None, after: str | None) -> None:
    if after is not None:
        _print_text(f"{title}, after {after}, {device}", "after", texts.passes[after])
        return
    for name in STAGES:
        if name in texts.stages and stage in (None, name):
            _print_text(f"{title}, {name}, {device}", name, texts.stages[name])


def _print_text(title: str, name: str, text: str) -> None:
    console = Console(highlight=False)
    console.print(f"# {title}", style="bold", markup=False, soft_wrap=True)
    if console.is_terminal and name in _LANGUAGES:
        console.print(Syntax(text.rstrip(), _LANGUAGES[name], background_color="default"))
    else:
        print(text.rstrip(), flush=True)


def stages_of(recorded: Recorded, device: str) -> Texts:
    """The stages, from the definition to the last text that `device` has, and the passes."""
    graph = recorded.definition.fusion.graph
    if recorded.by_hand:
        texts = Texts()
        texts.stage("fusion", graph.definition)
        compiler.scheduled_stages(graph.user_schedule, target_of(device), texts)
        return _with_passes(texts)
    inputs = recorded.inputs
    if inputs is None:
        inputs = [made_up(value) for value in graph.definition.given_inputs]
    return _stages_of_call(graph.definition, inputs, device)


def _stages_of_call(definition: Fusion, inputs: Sequence[Any], device: str) -> Texts:
    """The stages of a fusion that is called with these inputs, or their metadata."""
    texts = Texts()
    sizes = bind(definition, inputs).sizes
    layouts = input_layouts(definition, inputs)
    compiler.stages(definition, sizes, layouts, target_of(device), texts)
    return _with_passes(texts)


def _with_passes(texts: Texts) -> Texts:
    """Adds lowering as a stage of its own: the names of its passes."""
    lowering = [each.__name__ for each in (*SCHEDULE_PASSES, build_nests, *KERNEL_PASSES)]
    ran = [name for name in lowering if name in texts.passes]
    texts.stage("lower", "".join(f"{name}\n" for name in ran))
    return texts


def made_up(value: Val) -> torch.Tensor | bool | int | float:
    """An input that fits: open sizes are equal and small, elements random."""
    if isinstance(value, Scalar):
        return 1.0 if is_floating(value.dtype) else 1
    assert isinstance(value, TensorView)
    shape = [
        axis.size.value if isinstance(axis.size, Integer) else _MADE_UP_SIZE
        for axis in value.domain.logical
    ]
    expanded = [axis.is_expanded for axis in value.domain.logical]
    kept = [1 if flag else size for flag, size in zip(expanded, shape, strict=True)]
    tensor = torch.testing.make_tensor(kept, dtype=to_torch(value.dtype), device="cpu")
    order = value.domain.memory_order
    positions = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(positions).expand(shape)
