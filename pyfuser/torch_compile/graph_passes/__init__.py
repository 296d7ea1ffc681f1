"""The passes over a traced graph, in order, before it is cut into regions.

Each changes the graph in place without changing its results; its file explains its place in the
order.  `cpu_scalars` and `equal_results`, which need to know which devices and calls have kernels,
run after them.
"""

from __future__ import annotations

from collections.abc import Callable

from torch.fx import Graph

from .attention import use_library_attention
from .batches_of_products import split_batches_of_products
from .complex_numbers import compute_in_parts
from .copies import drop_copies
from .dead_nodes import drop_dead_nodes
from .effects import call_effects_directly
from .equal_views import merge_equal_views
from .exact_sizes import widen_sizes
from .flex_attention import spell_out_flex_attention
from .foreach import flatten_foreach
from .half_products import widen_half_products
from .layout_copies import read_layout_copies
from .linear import join_biases
from .pooling import spell_out_pooling
from .random_state import complete_metadata
from .repeats import expand_repeats
from .replaced_sources import find_replaced_sources
from .reshaped_results import move_readers_of_reshapes
from .reshapes import move_reshapes
from .reversed_scans import join_reversed_scans
from .scattered_sums import join_scattered_sums

GRAPH_PASSES: tuple[Callable[[Graph], object], ...] = (
    call_effects_directly,
    complete_metadata,
    find_replaced_sources,
    spell_out_flex_attention,
    flatten_foreach,
    join_scattered_sums,
    join_reversed_scans,
    spell_out_pooling,
    use_library_attention,
    compute_in_parts,
    widen_sizes,
    split_batches_of_products,
    widen_half_products,
    drop_copies,
    read_layout_copies,
    join_biases,
    expand_repeats,
    move_reshapes,
    move_readers_of_reshapes,
    merge_equal_views,
    drop_dead_nodes,
)

__all__ = ["GRAPH_PASSES"]
