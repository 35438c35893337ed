"""The benchmark's nodes start and move a request: what they use of the core is nobody else's, and they run rarely."""

import pytest

from tests.bench.remote import pair

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(("src", "dst"), [(1, 1), (2, 1)])
def test_the_smallest_transfer_of_the_benchmark(src: int, dst: int) -> None:
    """Fails where a node's way to a peer, its regions or the bare calls are no longer the core's."""
    with pair(src, dst, items=4, page=4, layers=1, head_bytes=32) as side:
        wall, cpu = side.move([0, 1, 3], [2, 0, 1])
        assert wall > 0
        assert cpu > 0
        assert side.synchronous([0, 1], [2, 3]) > 0
        assert side.asynchronous([0, 1], [2, 3]) > 0
