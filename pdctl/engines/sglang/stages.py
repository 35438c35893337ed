"""What a starting SGLang engine is doing, from its log. Each stage is a line that 0.5.23 writes."""

from typing import Final

from pdctl.engines.words import last_stage

#: In the order in which they appear: (what the log says, what that means).
STAGES: Final = (
    ("server_args=", "importing"),
    ("Init parallel begin", "joining ranks"),
    ("Load weight begin", "loading weights"),
    ("Load weight end", "allocating the KV cache"),
    ("KV Cache is allocated", "preparing kernels"),
    ("Capture decode CUDA graph begin", "capturing CUDA graphs"),
    ("Capture cuda graph begin", "capturing CUDA graphs"),
    ("Application startup complete", "warming up"),
    ("The server is fired up", "serving"),
)
#: Lines of a process that is about to end.
FATAL: Final = (
    "Scheduler hit an exception",
    "Received sigquit from a child process",
    "error: unrecognized arguments",
    "CUDA out of memory",
    "Address already in use",
    "address already in use",
)


def stage(log: str) -> str | None:
    """The last stage reached since the last start in this log, in a few words; None before the first."""
    return last_stage(log, STAGES, FATAL)
