"""Values out of Prometheus text."""


def gauge(exposition: str, name: str) -> float:
    """The one sample of a metric of the core. AssertionError where there is none, or several."""
    found = [line for line in exposition.splitlines() if line.startswith(f"pdctl_transfer_{name}{{")]
    assert len(found) == 1, f"{len(found)} samples of pdctl_transfer_{name}"
    return float(found[0].rpartition(" ")[2])
