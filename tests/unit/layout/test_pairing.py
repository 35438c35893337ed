"""Which entry feeds which: by id over all stages, by position only where that is sound, and never silently."""

import pytest
from msgspec.structs import replace

from pdctl_transfer.layout.manifest import NGRAM_LAYER, ROPE_RING_LAYER
from pdctl_transfer.layout.pairing import Pairing, pair_entries
from pdctl_transfer.layout.read import read_manifest
from tests.unit.layout.build import component, entry, groups, kv, manifest, replicated, single, stage
from tests.unit.layout.examples import EXAMPLES


def names(pairing: Pairing) -> list[tuple]:
    """(kind, layer, tensor, n, prefill stage, decode stage) of every pair."""
    return [
        (pair.dst.kind, pair.layer, pair.dst.entry.tensor, pair.dst.n, pair.src.place.pp, pair.dst.place.pp)
        for pair in pairing.pairs
    ]


def reasons(pairing: Pairing) -> list[tuple]:
    return [(problem.reason, problem.side, problem.kind) for problem in pairing.problems]


def latent(*layers: int | None):
    return component("kv", "page", *(replicated(layer, "latent", outer=4) for layer in layers))


@pytest.mark.parametrize("prefill", ["hybrid-prefill-tp4", "hybrid-prefill-tp1-pp2"])
def test_the_examples_pair_completely(prefill):
    pairing = pair_entries(read_manifest(EXAMPLES[prefill]), read_manifest(EXAMPLES["hybrid-decode-tp1"]))
    assert pairing.problems == ()
    assert len(pairing.pairs) == 24
    for pair in pairing.pairs:
        assert pair.src.key == pair.dst.key


def test_order_of_registration_does_not_matter():
    backwards = kv([0, 1])
    backwards = replace(backwards, entries=backwards.entries[::-1])
    pairing = pair_entries(single("prefill", 1, kv([0, 1])), single("decode", 1, backwards))
    assert [pair.src.place.entry for pair in pairing.pairs] == [3, 2, 1, 0]


def test_stages_need_not_match():
    """Hybrid MLA with prefill PP 2: layer 3 lies in the second stage, where a slice by position would look at 1."""
    prefill = manifest("prefill", 1, stage(0, (0, 2), latent(1)), stage(1, (2, 6), latent(3, 5)))
    decode = manifest("decode", 1, stage(0, (0, 4), latent(1, 3)), stage(1, (4, 6), latent(5)))
    assert names(pair_entries(prefill, decode)) == [
        ("kv", 1, "latent", 0, 0, 0),
        ("kv", 3, "latent", 0, 1, 0),
        ("kv", 5, "latent", 0, 1, 1),
    ]


def test_occurrences_pair_in_order():
    """Two buffer groups of one layer, as on NPUs."""
    pairing = pair_entries(single("prefill", 1, latent(3, 7, 3, 7)), single("decode", 1, latent(3, 3, 7, 7)))
    assert [(pair.src.place.entry, pair.dst.place.entry) for pair in pairing.pairs] == [(0, 0), (2, 1), (1, 2), (3, 3)]


def test_a_kind_that_occurs_twice_is_one_list():
    pairing = pair_entries(single("prefill", 1, latent(3), latent(3)), single("decode", 1, latent(3, 3)))
    assert [(pair.src.n, pair.dst.n) for pair in pairing.pairs] == [(0, 0), (1, 1)]
    assert pairing.problems == ()


def test_a_stage_without_sparse_layers_is_a_no_op():
    """PP 2 whose first stage has no layer of that kind: empty component on one stage, none at all on the other side."""
    qsa = component("qsa_compressed", "page", replicated(5, "compressed_k"))
    empty = component("qsa_compressed", "page")
    prefill = manifest("prefill", 1, stage(0, (0, 4), kv([0]), empty), stage(1, (4, 8), qsa))
    decode = single("decode", 1, kv([0]), qsa)
    pairing = pair_entries(prefill, decode)
    assert pairing.problems == ()
    assert len(pairing.pairs) == 3
    assert pair_entries(single("prefill", 1, kv([0]), empty), single("decode", 1, kv([0]))).problems == ()


def test_entries_without_a_counterpart_are_named():
    pairing = pair_entries(single("prefill", 1, latent(0, 1)), single("decode", 1, latent(1, 2)))
    assert names(pairing) == [("kv", 1, "latent", 0, 0, 0)]
    missing, starved = pairing.problems
    assert (missing.reason, missing.side, missing.at.entry.layer, missing.draft) == ("no_partner", "prefill", 0, False)
    assert (starved.reason, starved.side, starved.at.entry.layer, starved.draft) == ("no_source", "decode", 2, False)


def test_a_draft_on_one_side_only_is_told_apart():
    """Its ids begin where the target's layers end."""
    drafted, plain = single("prefill", 1, latent(0, 8)), single("decode", 1, latent(0))
    [problem] = pair_entries(drafted, plain).problems
    assert (problem.reason, problem.draft) == ("no_partner", True)
    [problem] = pair_entries(replace(plain, role="prefill"), replace(drafted, role="decode")).problems
    assert (problem.reason, problem.draft) == ("no_source", True)


def test_drafts_need_no_stage_that_computes_them():
    prefill = manifest("prefill", 1, stage(0, (0, 4), latent(0)), stage(1, (4, 8), latent(4, 8)))
    pairing = pair_entries(prefill, single("decode", 1, latent(0, 4, 8)))
    assert pairing.problems == ()
    assert ("kv", 8, "latent", 0, 1, 0) in names(pairing)


@pytest.mark.parametrize("layer", [ROPE_RING_LAYER, NGRAM_LAYER])
def test_a_request_wide_entry_is_written_by_the_lowest_stage_into_every_stage(layer):
    wide = component("qsa_pending", "row", replicated(layer, "rope_position"))
    prefill = manifest("prefill", 1, *(stage(i, (2 * i, 2 * i + 2), wide) for i in (1, 2, 0)))
    decode = manifest("decode", 1, stage(0, (0, 3), wide), stage(1, (3, 6), wide))
    pairing = pair_entries(prefill, decode)
    assert pairing.problems == ()
    assert [(pair.src.place.pp, pair.dst.place.pp) for pair in pairing.pairs] == [(0, 0), (0, 1)]


def test_a_layer_that_its_stage_does_not_compute_is_no_source():
    """Pools that span all layers on every stage: only the copy of the computing stage holds anything."""
    everywhere = latent(0, 1, 2, 3)
    prefill = manifest("prefill", 1, stage(0, (0, 2), everywhere), stage(1, (2, 4), everywhere))
    pairing = pair_entries(prefill, single("decode", 1, everywhere, layers=4))
    assert [(pair.layer, pair.src.place.pp) for pair in pairing.pairs] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert reasons(pairing) == [("not_computed", "prefill", "kv")] * 2
    assert "stage 0 computes layers [0, 2), but registers layers 2, 3" in pairing.problems[0].text


def test_positions_pair_single_stages_of_equal_length():
    pairing = pair_entries(single("prefill", 1, latent(None, None)), single("decode", 1, latent(3, 7)))
    assert pairing.problems == ()
    assert [(pair.layer, pair.n, pair.src.place.entry) for pair in pairing.pairs] == [(3, 0, 0), (7, 0, 1)]


@pytest.mark.parametrize(
    ("prefill", "decode", "why"),
    [
        (single("prefill", 1, latent(None)), single("decode", 1, latent(None, None)), "prefill has 1 entries"),
        (single("prefill", 1, latent(3)), single("decode", 1, latent(None, None)), "decode 2"),
        (
            manifest("prefill", 1, stage(0, (0, 4), latent(None)), stage(1, (4, 8), latent(None))),
            single("decode", 1, latent(None, None)),
            "2 prefill and 1 decode stages",
        ),
        (
            manifest("prefill", 1, stage(0, (0, 4), latent(None)), stage(1, (4, 8), latent(None))),
            manifest("decode", 1, stage(0, (0, 4), latent(None)), stage(1, (4, 8), latent(None))),
            "2 prefill and 2 decode stages",
        ),
        (
            single("prefill", 1, component("kv", "page", replicated(None, "k"), replicated(None, "v"))),
            single("decode", 1, component("kv", "page", replicated(None, "v"), replicated(None, "k"))),
            "entry 0 is k on prefill and v on decode",
        ),
    ],
)
def test_unsound_positions_are_a_problem_not_a_pair(prefill, decode, why):
    pairing = pair_entries(prefill, decode)
    assert pairing.pairs == ()
    [problem] = pairing.problems
    assert problem.reason == "position"
    assert why in problem.text


def test_an_engine_that_pairs_by_position_is_told_even_where_ids_are_given():
    swa = component("swa", "window_page", replicated(0, "k"), engine_pairs="position")
    other = component("swa", "window_page", replicated(4, "k"), engine_pairs="position")
    both = component("swa", "window_page", replicated(0, "k"), replicated(4, "k"))
    prefill = manifest("prefill", 1, stage(0, (0, 4), swa), stage(1, (4, 8), other))
    pairing = pair_entries(prefill, single("decode", 1, both))
    assert reasons(pairing) == [("engine_position", "prefill", "swa")]
    assert len(pairing.pairs) == 2  # by id it is sound: only the engine would get it wrong
    assert pair_entries(single("prefill", 1, swa), single("decode", 1, swa)).problems == ()


def test_buffer_groups_that_do_not_divide():
    """Ids repeated once a group and cut off: the last buffers have none, or one layer has more than another."""
    full = single("decode", 1, latent(3, 7, 3, 7))
    cut = pair_entries(single("prefill", 1, latent(3, 7, 3, None)), full)
    assert reasons(cut) == [("mixed_ids", "prefill", "kv")]
    assert "3 of 4 entries have a layer id, 1 have none" in cut.problems[0].text
    uneven = pair_entries(single("prefill", 1, latent(3, 7, 3)), full)
    assert reasons(uneven) == [("uneven_ids", "prefill", "kv")]
    assert "latent occurs 1 times for layer 7, 2 times for layer 3" in uneven.problems[0].text
    assert uneven.pairs == ()


def test_draft_and_request_wide_entries_do_not_count_as_uneven():
    mixed = component(
        "mamba",
        "slot",
        *(entry(layer, "conv", groups((2, 1))) for layer in (0, 0, 1, 1, 8)),
        replicated(NGRAM_LAYER, "ple_ngram"),
    )
    assert pair_entries(single("prefill", 1, mixed), single("decode", 1, mixed)).problems == ()


def test_one_bad_kind_does_not_hide_the_others():
    qsa = component("qsa_compressed", "page", replicated(None, "compressed_k"), replicated(5, "compressed_k"))
    pairing = pair_entries(single("prefill", 1, kv([0]), qsa), single("decode", 1, kv([0]), qsa))
    assert len(pairing.pairs) == 2
    assert {problem.side for problem in pairing.of("mixed_ids")} == {"prefill", "decode"}
