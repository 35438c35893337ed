"""PD1055: flags with which SGLang does not start: of drafts that go together, and those that do not go with PD.

For EAGLE and its kin steps and top-k are given both or neither, and drafted tokens not without steps: else the engine
ends at its start, with a TypeError or an assertion without words (0.5.23 arg_groups/speculative_hook.py:1159, run).
"""

from collections.abc import Iterator
from typing import Final

from pdctl.check.groups import Group
from pdctl.derive.drafts import algorithm
from pdctl_transfer.rules import Evidence, Finding, Outcome

FAMILY: Final = frozenset({"EAGLE", "EAGLE3", "NEXTN", "STANDALONE"})
FLAGS: Final = {
    "num_steps": "--speculative-num-steps",
    "eagle_topk": "--speculative-eagle-topk",
    "num_draft_tokens": "--speculative-num-draft-tokens",
}
ADAPTIVE: Final = "--speculative-adaptive"
#: Flags that a disaggregated engine refuses, with the value that it refuses (none: any), and where (0.5.23 arg_groups).
ALONE: Final = {
    "--enable-linear-replayssm": ("", "attention_hook.py:430"),
    "--mamba-radix-cache-strategy": ("extra_buffer_lazy", "mamba_hook.py:125"),
    "--enable-watermark": ("", "validation_hook.py:89"),
    "--enable-pdmux": ("", "validation_hook.py:256"),
}


def check_refused_flags(prefill: Group, decode: Group) -> Iterator[Outcome]:
    """Each side by itself."""
    for group in (prefill, decode):
        if group.manifest.engine.name == "sglang":
            yield from _drafts(group)
            yield from _alone(group)


def _drafts(group: Group) -> Iterator[Outcome]:
    settings = group.manifest.speculative or {}
    if algorithm(settings) not in FAMILY or group.flag(ADAPTIVE):
        return
    given = {flag for key, flag in FLAGS.items() if settings.get(key) is not None}
    steps, topk, _ = FLAGS.values()
    lacks = [flag for flag in (steps, topk) if flag not in given]
    if given and lacks:
        what = f"{group.role}: {', '.join(sorted(given))} without {' and '.join(lacks)}"
        yield Finding("PD1055", group.name, (group.side.evidence("speculative"),), {"what": what})


def _alone(group: Group) -> Iterator[Outcome]:
    for flag, (value, where) in ALONE.items():
        if (word := group.flag(flag)) and value in ("", word.value):
            flag = f"{flag} {value}".rstrip()
            evidence = (
                Evidence(word.where, flag),
                Evidence(f"SGLang 0.5.23 arg_groups/{where}", "where it is refused"),
            )
            what = f"{group.role}: {flag} does not go with --disaggregation-mode"
            yield Finding("PD1055", group.name, evidence, {"what": what})
