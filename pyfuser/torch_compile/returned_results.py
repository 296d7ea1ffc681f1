"""The results of a compiled graph: different objects, as eager's are, though memory is shared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from .graph_texts import GraphTexts
from .result_memory import is_detached, owners_of_results
from .saved_layouts import is_saved
from .views import is_getitem, viewed

aten = torch.ops.aten


class ResultsWriter:
    """Writes the end of a graph's function."""

    def __init__(self, texts: GraphTexts) -> None:
        self.texts, self.traced, self.writer = texts, texts.traced, texts.writer

    def write(self) -> None:
        """Returns the results, as different objects: by these, autograd tells them apart.

        What the caller changes in one is changed in all that are in the same memory.  Autograd has
        to know, so they count their changes together.
        """
        owners = owners_of_results(self.traced)
        returned: dict[str, Any] = {}
        texts: list[str] = []
        for number, result in enumerate(self.traced.outputs):
            for_backward = is_saved(self.traced.graph_module, number)
            text = self._result(result, owners, for_backward)
            is_tensor = isinstance(result, Node) and result in self.traced.views
            if returned.setdefault(text, result) is not result and is_tensor:
                text = self._alias_text(result, owners)
            texts.append(text)
        self.writer.line(f"return ({''.join(f'{text}, ' for text in texts)})")

    def _result(self, result: Any, owners: Mapping[Node, Node], for_backward: bool) -> str:
        """The text of a result.

        What the backward reads may be a view of an argument. That mustn't change until then, so
        autograd has to see a view.

        A view of an argument is made by the graph's own operations if sizes are symbolic: autograd
        then has no other record of them than the tensor itself, and derives the gradient of a view
        by sizes and strides differently if elements overlap.
        """
        views = self.traced.views
        if not isinstance(result, Node) or result not in views:
            return self.texts.argument(result)
        base = views.base(result)
        if base.op == "placeholder":
            if not self.traced.sizes.is_static:
                return self._replayed(result)
            is_alias = for_backward and not views[result].is_whole(views[base])
        else:
            is_alias = result is not owners[base]
        return self._alias_text(result, owners) if is_alias else self.texts.argument(result)

    def _alias_text(self, result: Node, owners: Mapping[Node, Node]) -> str:
        """An expression for a result in the memory of another, whose changes it counts."""
        text = self.texts.view(result, owners[self.traced.views.base(result)])
        return f"{text}.detach()" if is_detached(result, self.traced.views) else text

    def _replayed(self, node: Node) -> str:
        """An expression for a view, by the operations that lead from its base to it."""
        if node is self.traced.views.base(node):
            return self.texts.argument(node)
        if node.target is aten.copy_.default:  # the memory that was written to
            assert isinstance(node.args[0], Node)
            return self._replayed(node.args[0])
        call, pick = node, ""
        if is_getitem(node):
            assert isinstance(node.args[0], Node)
            call, pick = node.args[0], f"[{node.args[1]}]"
        source = viewed(call)
        if source is None:
            return self.texts.argument(node)
        target = self.writer.constant(self.texts.fresh("f_view"), call.target)
        rest = [*map(self.texts.argument, call.args[1:])]
        rest += [f"{name}={self.texts.argument(given)}" for name, given in call.kwargs.items()]
        return f"{target}({', '.join([self._replayed(source), *rest])}){pick}"
