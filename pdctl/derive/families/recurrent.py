"""Recurrent layers: one slot a request, with a convolution's window and a temporal state.

Gated delta networks (GDN), Kimi delta attention (KDA) and Mamba2 differ in which channel blocks are concatenated, in
which axis of the window is the inner one, and in whether the engine is told where the blocks end.
"""

from pdctl.derive.config import Config
from pdctl.derive.geometry import Recurrent
from pdctl_transfer.layout.manifest import Group


def read(config: Config, layers: tuple[int, ...], pattern_key: str | None) -> Recurrent | None:
    """The recurrent state of `layers`, by the keys that describe it."""
    if config.has("layer_group_size"):
        return _lightning(config, layers)
    if config.has("attn_layer_period"):
        return _mamba1(config, layers)
    if config.has("conv_L_cache"):
        return _short_conv(config, layers)
    if config.has("linear_attn_config"):
        return _kda(config.child("linear_attn_config"), layers)
    if config.has("mamba_n_heads"):
        return _mamba2_named(config, layers)
    if not layers:
        return None
    if config.has("linear_num_heads"):
        return _kda_state(
            layers,
            config.size("linear_num_heads"),
            config.size("linear_head_dim"),
            config.size("linear_conv_kernel_dim", least=2),
        )
    if config.has("linear_num_value_heads") or config.has("linear_num_key_heads"):
        return _gdn(config, layers)
    if config.has("mamba_num_heads"):
        return _mamba2(config, layers)
    return config.fail(
        "linear_num_value_heads",
        f"is missing: {pattern_key} names linear layers, and neither linear_*, mamba_* nor linear_attn_config keys "
        "describe their state",
    )


def _lightning(config: Config, layers: tuple[int, ...]) -> Recurrent | None:
    """Ling-2.5: a temporal state `[heads, dim, dim]` and no convolution. With one it is Ling-3, which was not seen."""
    if config.has("short_conv_kernel_size") or not config.has("kv_lora_rank"):
        config.fail("layer_group_size", "names linear layers of a kind whose state pdctl does not know")
    heads, dim = config.size("num_attention_heads"), config.size("head_dim")
    return Recurrent(
        family="lightning",
        layers=layers,
        conv=(),
        taps=0,
        taps_first=False,
        declared=True,
        temporal_heads=heads,
        temporal_elements=dim * dim,
        state_dtype=None,
    )


def _short_conv(config: Config, layers: tuple[int, ...]) -> Recurrent | None:
    """LFM2: a window of `conv_L_cache - 1` positions of the hidden channels, and no temporal state."""
    return Recurrent(
        family="short_conv",
        layers=layers,
        conv=(Group(config.size("hidden_size"), 1),),
        taps=config.size("conv_L_cache", least=2) - 1,
        taps_first=False,
        declared=False,
        temporal_heads=0,
        temporal_elements=0,
        state_dtype=None,
    )


def _mamba1(config: Config, layers: tuple[int, ...]) -> Recurrent:
    """Jamba: each inner channel is a head of its own, `[inner, state]`, and the window is of those channels alone."""
    inner = config.size("mamba_expand") * config.size("hidden_size")
    return Recurrent(
        family="mamba1",
        layers=layers,
        conv=(Group(inner, 1),),
        taps=config.size("mamba_d_conv", least=2) - 1,
        taps_first=False,
        declared=True,
        temporal_heads=inner,
        temporal_elements=config.size("mamba_d_state"),
        state_dtype=None,
    )


def _gdn(config: Config, layers: tuple[int, ...]) -> Recurrent:
    """`cat(q, k, v)` channel-first; temporal `[v_heads, v_dim, k_dim]`."""
    keys, values = config.size("linear_num_key_heads"), config.size("linear_num_value_heads")
    key_dim, value_dim = config.size("linear_key_head_dim"), config.size("linear_value_head_dim")
    return Recurrent(
        family="gdn",
        layers=layers,
        conv=(Group(keys, key_dim), Group(keys, key_dim), Group(values, value_dim)),
        taps=config.size("linear_conv_kernel_dim", least=2) - 1,
        taps_first=False,
        declared=True,
        temporal_heads=values,
        temporal_elements=value_dim * key_dim,
        state_dtype=config.word("mamba_ssm_dtype"),
    )


def _kda(config: Config, layers: tuple[int, ...]) -> Recurrent | None:
    if not layers:
        return None
    kernel = config.size("short_conv_kernel_size", least=2)
    return _kda_state(layers, config.size("num_heads"), config.size("head_dim"), kernel)


def _kda_state(layers: tuple[int, ...], heads: int, dim: int, kernel: int) -> Recurrent:
    """`[kernel - 1, channels]` of three equal blocks; temporal `[heads, dim, dim]`."""
    return Recurrent(
        family="kda",
        layers=layers,
        conv=(Group(heads, dim),) * 3,
        taps=kernel - 1,
        taps_first=True,
        declared=True,
        temporal_heads=heads,
        temporal_elements=dim * dim,
        state_dtype=None,
    )


def _mamba2(config: Config, layers: tuple[int, ...]) -> Recurrent:
    """Nemotron-H's spelling: `mamba_num_heads`, `n_groups`, `ssm_state_size`, `conv_kernel`."""
    groups_key = "n_groups" if config.has("n_groups") else "mamba_n_groups"
    return _mamba2_state(
        config,
        layers,
        heads=config.size("mamba_num_heads"),
        head_dim=config.size("mamba_head_dim"),
        groups_key=groups_key,
        state=config.size("ssm_state_size"),
        kernel=config.size("conv_kernel" if config.has("conv_kernel") else "mamba_d_conv", least=2),
    )


def _mamba2_named(config: Config, layers: tuple[int, ...]) -> Recurrent | None:
    """Falcon-H1's and Granite's spelling: `mamba_n_heads`, `mamba_n_groups`, `mamba_d_state`, `mamba_d_conv`.

    Where no pattern tells layers apart, every layer has both attention and Mamba2.
    """
    if config.has("layer_types") or config.has("layers_block_type"):
        if not layers:
            return None
    else:
        layers = tuple(range(config.size("num_hidden_layers")))
    heads = config.size("mamba_n_heads")
    inner = config.size("mamba_d_ssm", config.size("mamba_expand", 2) * config.size("hidden_size"))
    if inner % heads:
        config.fail("mamba_n_heads", f"found {heads}, which does not divide the inner size {inner}")
    head_dim = inner // heads
    if config.get("mamba_d_head") not in (None, "auto") and config.size("mamba_d_head") != head_dim:
        config.fail(
            "mamba_d_head", f"found {config.get('mamba_d_head')}, but {inner} channels in {heads} heads are {head_dim}"
        )
    return _mamba2_state(
        config,
        layers,
        heads=heads,
        head_dim=head_dim,
        groups_key="mamba_n_groups",
        state=config.size("mamba_d_state"),
        kernel=config.size("mamba_d_conv", least=2),
    )


def _mamba2_state(
    config: Config, layers: tuple[int, ...], *, heads: int, head_dim: int, groups_key: str, state: int, kernel: int
) -> Recurrent:
    """`cat(x, B, C)` channel-first, its blocks not declared to the engine; temporal `[heads, head_dim, state]`."""
    shared = Group(config.size(groups_key), state)
    return Recurrent(
        family="mamba2",
        layers=layers,
        conv=(Group(heads, head_dim), shared, shared),
        taps=kernel - 1,
        taps_first=False,
        declared=False,
        temporal_heads=heads,
        temporal_elements=head_dim * state,
        state_dtype=config.word("mamba_ssm_dtype"),
        groups_key=groups_key,
    )
