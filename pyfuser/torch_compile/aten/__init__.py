"""From aten to fusions: which nodes of a graph can be fused, and the Fusion of a group of them.

Between AOTAutograd's functional graphs and pyfuser's IR; independent of partitioning.
"""

from .build import RegionFusion, build_region
from .checked import check_classes
from .decompositions import decompositions
from .region_builder import NotTranslated
from .rounded_values import rounded_values
from .tables import TRANSLATIONS, cost, refusal

__all__ = [
    "TRANSLATIONS",
    "NotTranslated",
    "RegionFusion",
    "build_region",
    "check_classes",
    "cost",
    "decompositions",
    "refusal",
    "rounded_values",
]
