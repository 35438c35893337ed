"""Those moments of an `up` whose faults are of a kind of their own; the remaining ones are in tests/cluster."""

from pathlib import Path

import pytest

from tests.integration.up.conftest import Fleet
from tests.integration.up.moments import MOMENTS, Moment, hit, name_of

HERE = (2, 4, 5, 7, 10, 13, 15)


@pytest.mark.integration
@pytest.mark.code("PD3019")
@pytest.mark.parametrize("moment", [MOMENTS[index] for index in HERE], ids=name_of)
def test_whatever_is_hit_down_leaves_nothing(fleet: Fleet, tmp_path: Path, moment: Moment) -> None:
    hit(fleet, moment, tmp_path)
