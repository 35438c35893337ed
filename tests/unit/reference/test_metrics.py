"""The engine's exposition."""

from pdctl.engines.reference.server.metrics import merged


def test_several_ranks_expose_each_metric_once() -> None:
    """A second TYPE line of one metric makes Prometheus drop the whole scrape."""
    head = "# HELP bytes_total Bytes\n# TYPE bytes_total counter\n"
    ranks = [
        f'{head}bytes_total{{rank="{rank}"}} {rank}\n# TYPE open gauge\nopen{{rank="{rank}"}} 0\n' for rank in (0, 1)
    ]
    assert merged(ranks) == (
        f'{head}bytes_total{{rank="0"}} 0\nbytes_total{{rank="1"}} 1\n'
        '# TYPE open gauge\nopen{rank="0"} 0\nopen{rank="1"} 0\n'
    )
    assert merged([]) == ""
