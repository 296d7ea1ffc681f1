"""Random chains of reads against torch; memory is poisoned and nothing may fall back."""

from __future__ import annotations

import pytest

from tests.support.random_reads import check_chain

pytestmark = pytest.mark.usefixtures("poison")


# The last one is of an axis of one element that the sizes of others make so.
@pytest.mark.parametrize("seed", [*range(60), 940192])
def test_random_chains_of_reads(seed: int) -> None:
    check_chain(seed)
