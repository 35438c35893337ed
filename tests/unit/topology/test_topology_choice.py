"""The HCAs chosen on machines like those that operators reported trouble with."""

from pathlib import Path

import pytest

from pdctl_topology import Choice, choose, device_map, settings
from tests import machines


@pytest.fixture
def choice_of(tmp_path: Path):
    return lambda name, **options: choose(machines.host(name, tmp_path), **options)


def picks(choice: Choice) -> dict[str, list[tuple[str, str]]]:
    return {item.consumer: [(pick.hca, pick.distance) for pick in item.picks] for item in choice.assignments}


def causes(choice: Choice) -> dict[str, str]:
    return {item.hca: item.cause for item in choice.excluded}


def test_each_gpu_takes_the_hca_of_its_own_switch(choice_of):
    choice = choice_of("eight-gpus-eight-hcas")
    assert picks(choice) == {f"GPU {n}": [(f"mlx5_{n}", "PIX")] for n in range(8)}
    assert choice.excluded == ()


def test_distances_of_a_gpu_are_those_of_nvidia_smi(choice_of):
    far = choice_of("eight-gpus-eight-hcas").assignments[0].far
    words = {name: text.split(",")[0] for name, text in far.items()}
    assert words == {**{f"mlx5_{n}": "NODE" for n in (1, 2, 3)}, **{f"mlx5_{n}": "SYS" for n in (4, 5, 6, 7)}}


def test_bonds_count_as_one_device_with_one_gid_index_for_all(choice_of):
    choice = choice_of("eight-gpus-bonds")
    assert picks(choice) == {f"GPU {n}": [(f"mlx5_bond_{n}", "PXB")] for n in range(8)}
    assert {item.gid.gid.index for item in choice.usable} == {3}
    assert "MC_GID_INDEX=3" in [item.text for item in settings(choice)]


def test_a_disabled_port_is_excluded_by_its_state(choice_of):
    choice = choice_of("disabled-port")
    assert choice.hcas == ("mlx5_0", "mlx5_1")
    assert causes(choice) == {"mlx5_10": "down"}
    assert "Disabled" in choice.excluded[0].reason


def test_ethernet_functions_among_infiniband_are_left_out_whatever_their_names(choice_of):
    choice = choice_of("mixed-layers")
    assert choice.hcas == tuple(f"mlx5_{n}" for n in (0, 3, 4, 5, 6, 9, 10, 11))
    assert causes(choice) == {
        "mlx5_1": "other-link-layer",
        "mlx5_2": "down",
        "mlx5_7": "no-routable-gid",
        "mlx5_8": "down",
    }
    assert not any("GID" in item.text for item in settings(choice)), "InfiniBand needs no GID index"


def test_the_link_layer_asked_for_wins_over_bandwidth(choice_of):
    assert choice_of("mixed-layers", link_layer="Ethernet").hcas == ("mlx5_1",)


def test_hcas_next_to_no_gpu_are_idle_and_the_map_follows_the_neighbours_not_the_numbers(choice_of):
    choice = choice_of("eleven-hcas")
    assert list(device_map(choice).values()) == [f"mlx5_{n}" for n in (0, 1, 2, 4, 5, 6, 7, 11)]
    assert choice.idle == ("mlx5_3", "mlx5_8", "mlx5_9")


def test_the_gid_of_another_network_namespace_is_passed_over(choice_of):
    gid = choice_of("pod").usable[0].gid
    assert (gid.gid.index, gid.gid.address) == (7, "10.0.8.252")
    assert "network namespace" in {item.index: why for item, why in gid.passed_over}[3]


def test_a_routed_ipv6_gid_is_taken_not_the_link_local_one_before_it(choice_of):
    assert [item.gid.gid.index for item in choice_of("ipv6-only").usable] == [1, 1]


def test_adapters_that_are_counted_but_cannot_carry_a_transfer(choice_of):
    choice = choice_of("odd-ones")
    assert choice.hcas == ("mlx5_5",)
    assert causes(choice) == {
        "cxgb4_0": "not-an-adapter",
        "mlx5_0": "gid-unreadable",
        "mlx5_1": "limited-partition",
        "mlx5_2": "not-an-adapter",
        "mlx5_3": "no-device-node",
        "mlx5_4": "management",
        "mlx5_6": "virtual-function",
    }


def test_no_single_gid_index_where_they_differ(tmp_path: Path):
    def port(name: str, index: int, last: int) -> dict:
        gid = [index, f"0000:0000:0000:0000:0000:ffff:0a00:000{last}", "RoCE v2", f"eth{last}"]
        return {"name": name, "link_layer": "Ethernet", "gids": [gid]}

    root = machines.write({"addresses": ["10.0.0.1", "10.0.0.2"], "hca": [port("a", 3, 1), port("b", 5, 2)]}, tmp_path)
    texts = [item.text + (item.note or "") for item in settings(choose(machines.read_host(machines.FolderTree(root))))]
    assert not any("MC_GID_INDEX=" in text for text in texts)
    assert any("a:3 b:5" in text for text in texts)


def test_a_gpu_whose_only_hca_is_across_the_sockets_says_so(tmp_path: Path):
    machine = {
        "numa": ["0-1", "2-3"],
        "hca": [{"name": "mlx5_0", "at": "pci0000:80/0000:80:01.0/0000:81:00.0", "numa": 1,
                 "gids": [[0, "fe80:0000:0000:0000:0000:0000:0000:0001", "IB/RoCE v1", ""]]}],
        "gpu": [{"at": "pci0000:10/0000:10:01.0/0000:11:00.0", "numa": 0}],
    }  # fmt: skip
    choice = choose(machines.read_host(machines.FolderTree(machines.write(machine, tmp_path))))
    assert picks(choice) == {"GPU 0": [("mlx5_0", "SYS")]}
    assert "NUMA" in choice.assignments[0].warning
