"""The moments of an `up` that `make test` has no time for: nothing of them needs the hosts of this suite."""

from pathlib import Path

import pytest

from tests.integration.up.conftest import Fleet, fleet  # noqa: F401
from tests.integration.up.moments import MOMENTS, Moment, hit, name_of
from tests.integration.up.test_moments import HERE

REMAINING = [moment for index, moment in enumerate(MOMENTS) if index not in HERE]


@pytest.mark.cluster
@pytest.mark.parametrize("moment", REMAINING, ids=name_of)
def test_whatever_is_hit_down_leaves_nothing(fleet: Fleet, tmp_path: Path, moment: Moment) -> None:  # noqa: F811
    hit(fleet, moment, tmp_path)
