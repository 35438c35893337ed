"""`python -m pdctl.demo`: bring the fleet up, compare it with an aggregate engine, say what was seen, take it down.

Exit status: 0 all equal, 3 not, otherwise as `pdctl up`. The fleet's state lies in a folder of its own, removed at the
end unless something failed, so that a fleet of the operator is never touched.
"""

import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from pdctl.cli.output import note, result, table
from pdctl.cli.progress import watcher
from pdctl.demo.compare import LONGEST, NEW_TOKENS, PROMPTS, SHORTEST, Comparison, ask_all, compare, make_prompts
from pdctl.engines.http import Unreachable, request
from pdctl.errors import GateError
from pdctl.fleet import load_fleet
from pdctl.launch.state import FleetState
from pdctl.up.phases import NAMES
from pdctl.up.runner import bring_up
from pdctl.up.takedown import bring_down

AT_A_TIME = (1, 4, 16)


def main() -> int:
    """Run the demo; its exit status."""
    from pdctl.cli.failure import report

    state_home = tempfile.mkdtemp(prefix="pdctl-demo-")
    os.environ["XDG_STATE_HOME"] = state_home
    try:
        rows = _run()
    except Exception as error:  # noqa: BLE001  the outermost edge
        note(f"logs are kept in {state_home}")
        return report(error)
    except KeyboardInterrupt:
        shutil.rmtree(state_home)
        return 130
    equal, total = sum(row.tokens_equal for row in rows), sum(row.total for row in rows)
    result(f"tokens equal: {equal}/{total}")
    if not all(row.ok for row in rows):
        note(f"logs are kept in {state_home}")
        return 3
    shutil.rmtree(state_home)
    return 0


def _run() -> list[Comparison]:
    loaded = load_fleet(Path(__file__).with_name("fleet.yaml"))
    watch = watcher(max(map(len, NAMES)))
    try:
        state = bring_up(loaded, events=watch)
    finally:
        watch.close()
    try:
        _say_what_came_up(state)
        return _compare(state)
    except Unreachable as error:
        raise GateError(f"a request failed: {error}", code="PD3011") from error
    finally:
        bring_down(loaded.fleet.name)


def _say_what_came_up(state: FleetState) -> None:
    result("")
    for line in table([(u.name, u.role, u.url) for u in state.units], ("unit", "role", "address")):
        result(line)
    result("")
    phases = [(one.name, f"{one.seconds:.1f} s") for one in state.phases if one.outcome == "done"]
    for line in table(phases, ("phase", "time")):
        result(line)


def _compare(state: FleetState) -> list[Comparison]:
    by_role = {unit.role: unit for unit in state.units}
    prompts = make_prompts()
    note(f"\n{PROMPTS} prompts of {SHORTEST} to {LONGEST} tokens, {NEW_TOKENS} new tokens each …")
    expected = ask_all(by_role["aggregate"].url, prompts, at_a_time=4)
    rows, comparisons = [], []
    for at_a_time in AT_A_TIME:
        began = time.monotonic()
        seen = compare(ask_all(by_role["router"].url, prompts, at_a_time), expected)
        seconds = time.monotonic() - began
        comparisons.append(seen)
        equal, finish = f"{seen.tokens_equal}/{seen.total}", f"{seen.finish_equal}/{seen.total}"
        rows.append((str(at_a_time), equal, finish, f"{seen.logprob_difference:.1e}", f"{seconds:.1f} s"))
    result("")
    for line in table(rows, ("at a time", "tokens equal", "finish equal", "logprob difference", "time")):
        result(line)
    result("")
    result(f"moved from prefill to decode: {_moved(by_role['prefill'].url)}")
    result(
        f"prompt tokens computed by decode: {_sum(by_role['decode'].url, 'pdctl_ref_prompt_tokens_computed_total'):.0f}"
    )
    return comparisons


def _moved(url: str) -> str:
    moved = _sum(url, "pdctl_transfer_bytes_total")
    return f"{moved / 1e6:.1f} MB" if moved else "not counted by this engine"


def _sum(url: str, name: str) -> float:
    """The sum of a counter over its labels."""
    _, content = request(f"{url}/metrics")
    found = re.findall(rf"^{name}(?:{{[^}}]*}})? ([0-9.e+]+)$", content.decode(), re.MULTILINE)
    return sum(map(float, found))


if __name__ == "__main__":
    sys.exit(main())
