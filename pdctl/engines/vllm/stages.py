"""What a starting vLLM engine is doing, from its log. Each stage is a line that 0.32 writes."""

from typing import Final

from pdctl.engines.words import last_stage

#: In the order in which they appear: (what the log says, what that means).
STAGES: Final = (
    ("non-default args", "importing"),
    ("Initializing a V1 LLM engine", "starting workers"),
    ("Starting to load model", "loading weights"),
    ("Loading weights took", "allocating the KV cache"),
    ("KV cache size", "registering the KV cache"),
    ("Creating v1 connector", "registering the KV cache"),
    ("Starting vLLM API server", "starting the HTTP server"),
    ("Starting vLLM server", "starting the HTTP server"),
    ("Application startup complete", "serving"),
)
#: Lines of a process that is about to end.
FATAL: Final = (
    "EngineCore failed to start",
    "EngineCore encountered a fatal error",
    "error: unrecognized arguments",
    "CUDA out of memory",
    "died unexpectedly",
    "address already in use",
)


def stage(log: str) -> str | None:
    """The last stage reached since the last start in this log, in a few words; None before the first."""
    return last_stage(log, STAGES, FATAL)
