"""What is found before anything starts."""

import socket
import sys
from pathlib import Path

import pytest

from pdctl.engines.base import Need
from pdctl.errors import FindingsError, GateError, InputError
from pdctl.fleet import parse_fleet
from pdctl.launch.local import LocalLauncher
from pdctl.up.context import Bringup, Silent
from pdctl.up.plan import make_plan
from pdctl.up.ports import PortBook, is_free
from pdctl.up.preflight import check_layouts, check_needs, preflight


def refused(need: Need) -> InputError:
    with pytest.raises(InputError) as caught:
        check_needs([need])
    return caught.value


@pytest.mark.code("PD0011")
@pytest.mark.parametrize("path", ["/no/such/model", "./nothing", "models/a/b"])
def test_a_missing_model_is_named(path: str) -> None:
    error = refused(Need("model", path, "download it"))
    assert (error.code, error.where, error.hint) == ("PD0011", path, "download it")


def test_models_that_exist_or_that_only_the_engine_can_resolve_pass(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    check_needs(Need("model", path, "") for path in (str(tmp_path), "builtin:tiny-hybrid", "Qwen/Qwen4-8B"))


@pytest.mark.code("PD0011")
def test_a_folder_without_a_config_is_no_model(tmp_path: Path) -> None:
    assert refused(Need("model", str(tmp_path), "")).code == "PD0011"


@pytest.mark.code("PD0012")
@pytest.mark.parametrize("python", [sys.executable, "/usr/bin/env", "/no/python"])
def test_a_missing_package_is_named_with_its_interpreter_and_remedy(python: str) -> None:
    error = refused(Need("package", "no_such_package.inside", "pip install it", python))
    assert (error.code, error.hint) == ("PD0012", "pip install it")
    assert error.message == f"no_such_package.inside is not installed for {python}"


@pytest.mark.code("PD0056")
def test_an_interpreter_that_does_not_answer_in_time_is_named_and_its_package_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    monkeypatch.setattr("pdctl.up.preflight.ANSWER_S", 0.2)
    with pytest.raises(GateError) as caught:
        check_needs([Need("package", "sglang", "pip install it", str(python))])
    assert (caught.value.code, caught.value.exit_code) == ("PD0056", 3)
    assert caught.value.message == f"{python} did not say within 0.2 s whether sglang is installed"


@pytest.mark.code("PD0013")
def test_a_missing_system_library_is_named_with_the_line_that_installs_it() -> None:
    error = refused(Need("library", "libnothing.so.7", "apt-get install libnothing7"))
    assert (error.code, error.hint) == ("PD0013", "apt-get install libnothing7")
    assert error.message == "the system library libnothing.so.7 is missing"


def bringup(tmp_path: Path, prefill: str = "{page_size: 16}", decode: str = "{page_size: 16}") -> Bringup:
    text = (
        "schema: pdctl.fleet/v1\nname: f\nmodel: {path: builtin:tiny-hybrid}\nengine: reference\n"
        f"transfer: {{backend: mooncake, protocol: tcp}}\nprefill: {prefill}\ndecode: {decode}\n"
    )
    loaded = parse_fleet(text.encode(), Path("f.yaml"))
    return Bringup(loaded, make_plan(loaded), LocalLauncher(tmp_path), Silent())


@pytest.mark.code("PD3020")
def test_a_pair_that_check_refuses_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(
        FindingsError, match="PD1001  prefill-0 → decode-0: page size 16 on prefill, 32 on decode"
    ) as caught:
        check_layouts(bringup(tmp_path, decode="{page_size: 32}"))
    assert (caught.value.code, caught.value.exit_code) == ("PD3020", 3)


def test_a_pair_that_fits_is_counted(tmp_path: Path) -> None:
    assert check_layouts(bringup(tmp_path, decode="{page_size: 16, replicas: 3}")) == "3 pairs fit"


@pytest.mark.code("PD0016")
def test_a_fleet_without_a_decode_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="decode: no engine"):
        preflight(bringup(tmp_path, decode="{replicas: 0}"))


def test_a_free_port_is_never_given_twice_and_never_one_that_is_held() -> None:
    book = PortBook()
    ports = [book.free("127.0.0.1") for _ in range(50)]
    assert len(set(ports)) == 50
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        assert not is_free("127.0.0.1", held.getsockname()[1])
