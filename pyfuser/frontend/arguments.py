"""Arguments of operations as their builders take them: Python's numbers, lists where they belong.

A builder checks what it is given; it needn't know numpy's numbers, nor that a number was given for
a list.  What a parameter takes is read off its annotation.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..dtypes import DataType
from ..errors import ArgumentTypeError, DefinitionError, expected
from ..ops.binding import plain_number


def plain(value: Any) -> Any:
    """A number of numpy as Python's, also in a list; anything else unchanged."""
    return (
        type(value)(map(plain_number, value))
        if type(value) in (list, tuple)
        else plain_number(value)
    )


def with_plain_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function for `plain` arguments.

    It raises ArgumentTypeError for a list parameter that gets something else.  A DefinitionError
    begins with the function's name, also where one of the operations it consists of is refused.
    """
    parameters = inspect.signature(function).parameters.values()
    wanted = {each.name: _list_of(each.name, str(each.annotation)) for each in parameters}
    names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]

    @functools.wraps(function)
    def taking(*given: Any, **named: Any) -> Any:
        given = tuple(map(plain, given))
        named = {name: plain(value) for name, value in named.items()}
        for name, value in (*zip(names, given, strict=False), *named.items()):
            if (what := wanted.get(name)) and not _is_list(value, what):
                operation = f"{function.__name__}(): incompatible function arguments"
                hint = f"the argument `{name}`"
                raise ArgumentTypeError(expected(operation, what, repr(value), hint))
        try:
            return function(*given, **named)
        except DefinitionError as error:
            message = str(error)
            if not message.startswith(function.__name__):
                error.args = (f"{function.__name__}: {message}",)
            raise

    return taking


_DIMENSIONS = "a dimension or a list of dimensions"
_LISTS = {
    "Dims": _DIMENSIONS,
    "Sequence[IterDomain]": "a list of axes",
    "Sequence[Val]": "a list of tensors",
    "Sequence[bool]": "a list of True and False",
    "Sequence[int]": "a list of dimensions",
    "Shape": "a list of integers or scalars",
}


def _list_of(name: str, annotation: str) -> str | None:
    """What a parameter takes, in words, if it is a list."""
    return "a list of sizes" if name.endswith("shape") else _LISTS.get(annotation)


def _is_list(value: object, what: str) -> bool:
    if isinstance(value, Sequence):
        return True
    # A dtype in the place of the dimensions: sum(x, dtype).
    is_dims = value is None or isinstance(value, (int, DataType, torch.dtype))
    return what is _DIMENSIONS and is_dims
