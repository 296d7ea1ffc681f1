"""The torch.compile backend: aten graphs -> regions -> fusion nodes -> one function per graph.

backend.py           the entry point for torch; AOTAutograd, options
rematerialisation.py cuts the joint graph into forward and backward
graph_passes/        changes to a graph before it is cut
aten/                aten overloads -> expressions of a Fusion; decompositions
op_facts.py          facts about aten ops other than their translations
partition.py         which nodes become one fusion
views.py, sizes.py   memory and sizes of the graph's nodes, from its metadata
fusion_nodes.py      regions as registered fusions
steps.py, wrapper.py, in_place.py   the straight-line function of a graph
graph.py, compiled_graph.py         the whole flow, and the resulting callable
explain.py           how a model was cut, and why; graph_text.py: a graph as text
"""
