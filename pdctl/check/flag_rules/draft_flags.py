"""PD1055: flags of SGLang's drafts that go together.

For EAGLE and its kin steps and top-k are given both or neither, and drafted tokens not without steps: else the engine
ends at its start, with a TypeError or an assertion without words (0.5.23 arg_groups/speculative_hook.py:1159, run).
"""

from collections.abc import Iterator
from typing import Final

from pdctl.check.groups import Group
from pdctl.derive.drafts import algorithm
from pdctl_transfer.rules import Finding, Outcome

FAMILY: Final = frozenset({"EAGLE", "EAGLE3", "NEXTN", "STANDALONE"})
FLAGS: Final = {
    "num_steps": "--speculative-num-steps",
    "eagle_topk": "--speculative-eagle-topk",
    "num_draft_tokens": "--speculative-num-draft-tokens",
}
ADAPTIVE: Final = "--speculative-adaptive"


def check_draft_flags(prefill: Group, decode: Group) -> Iterator[Outcome]:
    """Each side by itself."""
    for group in (prefill, decode):
        settings = group.manifest.speculative or {}
        if group.manifest.engine.name != "sglang" or algorithm(settings) not in FAMILY or group.flag(ADAPTIVE):
            continue
        given = {flag for key, flag in FLAGS.items() if settings.get(key) is not None}
        steps, topk, _ = FLAGS.values()
        lacks = [flag for flag in (steps, topk) if flag not in given]
        if given and lacks:
            what = f"{group.role}: {', '.join(sorted(given))} without {' and '.join(lacks)}"
            yield Finding("PD1055", group.name, (group.side.evidence("speculative"),), {"what": what})
