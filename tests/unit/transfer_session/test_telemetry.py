"""Telemetry: bounded, readable by Prometheus, and it tells what happened."""

import json
import re

from prometheus_client.parser import text_string_to_metric_families

from pdctl_transfer.telemetry import Tally, Telemetry, merged
from tests.unit.transfer_session.world import FAST, World, manifest


def test_a_transfer_is_counted_on_both_sides() -> None:
    with World(manifest("prefill", 2, scale=64), manifest("decode", 1, scale=64), FAST) as world:
        _, receivers, _ = world.transfer(pages=20)
        assert receivers[0].wait(10) == "confirmed"
        sent = [peer.telemetry for peer, _ in world.prefill.values()]
        (received,) = [peer.telemetry for peer, _ in world.decode.values()]
        while received.count("requests_total", outcome="confirmed") < 1:
            receivers[0].wait(0.01)
        moved = sum(telemetry.count("bytes_total", kind="kv") for telemetry in sent)
        assert moved == sum(20 * entry.item_len for kind, entry in entries(world) if kind == "kv")
        ways = {way for way in ("direct", "packed", "staged") if sent[0].count("blocks_total", kind="kv", way=way)}
        assert ways == {"staged"}
        assert received.count("seconds_total", phase="scatter") > 0
        assert sent[0].count("seconds_total", phase="handshake") > 0
        assert [event.what for event in received.events()][-1] == "confirmed"


def entries(world: World) -> list:
    ((_, buffers),) = world.decode.values()
    return buffers.entries()


def test_the_exposition_parses_and_is_merged() -> None:
    texts = []
    for rank in ("pp0/tp0", 'odd"\\\nname'):
        telemetry = Telemetry("decode", rank, 8)
        telemetry.gauge("open_rooms", "Rooms", lambda: 3)
        telemetry.written(1, "prefill pp0/tp0", "kv", "staged", Tally(2, 4096), 1)
        telemetry.ended(1, "PD4004", "prefill", "gone", {"bootstrapping": 1.0, "failed": 2.0})
        texts.append(telemetry.exposition())
    families = {family.name: family for family in text_string_to_metric_families(merged(texts))}
    assert [sample.value for sample in families["pdctl_transfer_bytes"].samples] == [4096, 4096]
    failures = families["pdctl_transfer_failures"].samples
    assert {sample.labels["rank"] for sample in failures} == {"pp0/tp0", 'odd"\\\nname'}
    assert failures[0].labels["code"] == "PD4004"
    assert families["pdctl_transfer_open_rooms"].samples[0].value == 3
    assert len(re.findall("# TYPE pdctl_transfer_bytes_total", merged(texts))) == 1


def test_the_ring_is_bounded_and_read_from_a_serial_on() -> None:
    telemetry = Telemetry("decode", "pp0/tp0", 4)
    for room in range(10):
        telemetry.ended(room, "", "", "", {"bootstrapping": 0.0})
    events = json.loads(telemetry.events_json())
    assert [event["room"] for event in events] == [6, 7, 8, 9]
    assert telemetry.events(after=events[-2]["serial"])[0].room == 9
    assert "events_dropped_total" in telemetry.exposition()
