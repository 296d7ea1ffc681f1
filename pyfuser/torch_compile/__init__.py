"""The torch.compile backend: aten graphs -> regions -> fusion nodes -> one function a graph.

backend.py           what torch calls; AOTAutograd, options
rematerialisation.py forward and backward out of the joint graph
graph_passes/        what is changed in a graph before it is cut
aten/                aten overloads -> expressions of a Fusion; decompositions
op_facts.py          what is true of aten ops beside their translations
partition.py         which nodes become one fusion
views.py, sizes.py   memory and sizes of the graph's nodes, from its metadata
fusion_nodes.py      regions as registered fusions
steps.py, wrapper.py, in_place.py   the straight-line function of a graph
graph.py, compiled_graph.py         the whole way, and the callable that comes out
explain.py           how a model was cut, and why; graph_text.py: a graph as text
"""
