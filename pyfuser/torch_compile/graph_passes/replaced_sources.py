"""Views of nodes that torch has replaced: their metadata has the storages of the nodes before.

torch turns a number that changes from call to call, such as a learning rate, into a tensor of one
element, after the graph has been traced: `x * rate` becomes a new node, with metadata of its own,
while an `expand` of the product still has the storage of the old one.  It would look like memory
of its own.  First of the passes that look at storages; all others keep track of what they replace.

Before:  product (storage 2) = x * rate;  rows (storage 1) = expand(product)
After:   product (storages 2 and 1) = x * rate;  rows (storage 1) = expand(product)
"""

from __future__ import annotations

from torch.fx import Graph

from ..views import note_storage_of, returns_only_views, viewed


def find_replaced_sources(graph: Graph) -> None:
    """Notes the storages that the views of a node have, if they aren't its own."""
    for node in graph.nodes:
        source = viewed(node)
        if source is not None and returns_only_views(node):
            note_storage_of(source, node)
