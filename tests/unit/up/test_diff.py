"""What differs between what runs and what is wanted: each difference is named, and no secret with it."""

import pytest

from pdctl.launch.base import Unit
from pdctl.launch.started import started_from
from pdctl.up.diff import Running, Step, differences, named, steps


def unit(name: str = "decode-0", *words: str, cwd: str | None = None, **env: str) -> Unit:
    return Unit(name, "decode", ("python", "-m", "engine", *words), env, cwd)


def running(one: Unit) -> Running:
    return Running(one.name, one.digest, started_from(one))


def test_what_runs_as_wanted_stays_and_all_else_is_named_with_its_reason() -> None:
    have = [running(unit("a")), running(unit("b", "--tp", "1")), running(unit("old"))]
    wanted = [unit("a"), unit("b", "--tp", "2"), unit("new"), unit("lost")]
    found = steps(have, wanted, ended={"lost": "failed: exit status 3"})
    assert found == [
        Step("a", "keep"),
        Step("b", "restart", ("--tp: 1 → 2",)),
        Step("new", "start", ("new",)),
        Step("lost", "start", ("failed: exit status 3",)),
        Step("old", "stop", ("not in the fleet file",)),
    ]
    assert named(found, "restart", "stop") == {"b", "old"}


def test_a_unit_can_be_restarted_although_nothing_differs() -> None:
    assert steps([running(unit())], [unit()], {"decode-0": "as asked"}) == [Step("decode-0", "restart", ("as asked",))]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (unit("u", "--page-size", "16"), unit("u", "--page-size", "32"), ("--page-size: 16 → 32",)),
        (unit("u", "--page-size=16"), unit("u", "--page-size", "32"), ("--page-size: 16 → 32",)),
        (unit("u"), unit("u", "--fast"), ("--fast is new",)),
        (unit("u", "--level", "-1"), unit("u"), ("--level -1 is gone",)),
        (
            unit("u", "--decode", "http://a", "--decode", "http://b"),
            unit("u", "--decode", "http://a", "--decode", "http://c"),
            ("--decode: http://b → http://c",),
        ),
        (unit("u", "--decode", "a"), unit("u", "--decode", "a", "--decode", "b"), ("--decode: none → b",)),
        (unit("u", "--d", "a", "--d", "b"), unit("u", "--d", "b", "--d", "a"), ("--d: another order",)),
        (unit("u", A="1"), unit("u", B="1"), ("env A is gone", "env B is new")),
        (unit("u", A="1"), unit("u", A="2"), ("env A has another value",)),
        (unit("u", cwd="/a"), unit("u"), ("folder: /a → that of pdctl",)),
        (
            Unit("u", "decode", ("python", "-m", "a")),
            Unit("u", "decode", ("python", "-m", "b")),
            ("program: python -m a → python -m b",),
        ),
    ],
)
def test_each_difference_is_one_line(old: Unit, new: Unit, says: tuple[str, ...]) -> None:
    assert differences(started_from(old), new) == says
    assert old.digest != new.digest, "or it would be adopted"


def test_no_secret_is_kept_or_shown() -> None:
    old = unit("u", "--api-key", "hunter2", "--url=http://me:hunter2@host/", HF_TOKEN="hunter2")
    new = unit("u", "--api-key", "hunter3", "--url=http://me:hunter3@host/", HF_TOKEN="hunter3")
    kept = started_from(old)
    assert "hunter" not in repr(kept)
    assert differences(kept, new) == ("env HF_TOKEN has another value",)
    assert differences(kept, unit("u", *new.argv[3:], HF_TOKEN="hunter2")) == ("a value that is not shown",)


def test_equal_values_have_other_fingerprints_each_time() -> None:
    assert started_from(unit(A="1")).env != started_from(unit(A="1")).env


def test_what_nobody_wrote_down_is_said_to_be_unknown() -> None:
    found = steps([Running("decode-0", "sha256:0")], [unit()])
    assert found == [Step("decode-0", "restart", ("what it was started from is not known",))]
