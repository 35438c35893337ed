"""Gated delta nets for SGLang on a CPU without its compiled kernels: the same arithmetic in torch, a token at a time.

Where SGLang 0.5.23 looks for them: functions of `sgl_kernel.mamba`, operators of `torch.ops.sgl_kernel`, and what are
Triton kernels otherwise, the gated norm and the shared expert's gate. States are kept as SGLang's pools are shaped:
convolution [slot, channel, kernel - 1], temporal [slot, value head, V, K].
"""

import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import ModuleType
from typing import Any


def causal_conv1d_fn_cpu(
    x: Any,
    weight: Any,
    bias: Any,
    *,
    activation: str,
    conv_states: Any,
    has_initial_state: Any,
    cache_indices: Any,
    query_start_loc: Any,
    **_: Any,
) -> Any:
    """x: [channel, token] of all sequences; their last tokens become the states."""
    import torch

    out = torch.empty_like(x)
    for row, (start, stop) in enumerate(spans(query_start_loc)):
        slot, kept = int(cache_indices[row]), weight.shape[-1] - 1
        before = conv_states[slot] if has_initial_state[row] else torch.zeros_like(conv_states[slot])
        window = torch.cat((before.to(x.dtype), x[:, start:stop]), dim=1)
        out[:, start:stop] = convolved(window, weight, bias, activation)
        conv_states[slot] = window[:, window.shape[1] - kept :].to(conv_states.dtype)
    return out


def causal_conv1d_update_cpu(
    x: Any, conv_states: Any, weight: Any, bias: Any, activation: str, *, conv_state_indices: Any, **_: Any
) -> Any:
    """x: [sequence, channel], a token of each."""
    import torch

    slots = conv_state_indices.long()
    window = torch.cat((conv_states[slots].to(x.dtype), x[:, :, None]), dim=2)
    conv_states[slots] = window[:, :, 1:].to(conv_states.dtype)
    found = (window * taps(weight)).sum(dim=-1)
    return activated(found if bias is None else found + bias, activation)


def convolved(window: Any, weight: Any, bias: Any, activation: str) -> Any:
    """Each channel with its own taps."""
    found = (window.unfold(1, weight.shape[-1], 1) * taps(weight)[:, None, :]).sum(dim=-1)
    return activated(found if bias is None else found + bias[:, None], activation)


def taps(weight: Any) -> Any:
    """[channel, kernel]"""
    return weight.reshape(weight.shape[0], weight.shape[-1])


def activated(x: Any, activation: str | None) -> Any:
    import torch

    return torch.nn.functional.silu(x) if activation in ("silu", "swish") else x


def spans(starts: Any) -> Iterator[tuple[int, int]]:
    """Where sequences begin and end."""
    return pairwise(starts.tolist())


def fused_gdn_gating_cpu(A_log: Any, a: Any, b: Any, dt_bias: Any) -> Any:  # noqa: N803 - SGLang's names
    """Decay (a logarithm) and beta, [1, token, value head] each."""
    import torch

    decay = -A_log.float().exp() * torch.nn.functional.softplus(a.float() + dt_bias.float())
    return decay[None], b.float().sigmoid()[None]


def chunk_gated_delta_rule_cpu(
    *,
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    initial_state: Any,
    initial_state_indices: Any,
    cu_seqlens: Any,
    **_: Any,
) -> Any:
    """q, k: [1, token, key head, K]; v: [1, token, value head, V]. States are changed in place."""
    out = v.new_empty(v.shape)
    for row, (start, stop) in enumerate(spans(cu_seqlens)):
        slot = int(initial_state_indices[row])
        part = slice(start, stop)
        ran = recurrence(q[0, part], k[0, part], v[0, part], g[0, part], beta[0, part], initial_state[slot])
        out[0, part], initial_state[slot] = ran[0].to(v.dtype), ran[1].to(initial_state.dtype)
    return out, None, None


def fused_sigmoid_gating_delta_rule_update_cpu(
    *,
    A_log: Any,  # noqa: N803 - SGLang's names
    dt_bias: Any,
    q: Any,
    k: Any,
    v: Any,
    a: Any,
    b: Any,
    initial_state_source: Any,
    initial_state_indices: Any,
    cu_seqlens: Any,
    **_: Any,
) -> Any:
    """The same, with the gates computed here."""
    decay, beta = fused_gdn_gating_cpu(A_log, a, b, dt_bias)
    return chunk_gated_delta_rule_cpu(
        q=q,
        k=k,
        v=v,
        g=decay,
        beta=beta,
        initial_state=initial_state_source,
        initial_state_indices=initial_state_indices,
        cu_seqlens=cu_seqlens,
    )[0]


def recurrence(q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any) -> tuple[Any, Any]:
    """One sequence: S = exp(g) S; S += beta (v - S k) k; o = S q. Keys and queries have norm 1."""
    import torch

    shared = v.shape[1] // k.shape[1]
    q, k = (unit(x.float()).repeat_interleave(shared, dim=1) for x in (q, k))
    v, q = v.float(), q * k.shape[-1] ** -0.5
    state, out = state.float().clone(), []
    for token in range(v.shape[0]):
        state = state * g[token].float().exp()[:, None, None]
        error = v[token] - torch.einsum("hvk,hk->hv", state, k[token])
        state = state + torch.einsum("hv,hk->hvk", error * beta[token].float()[:, None], k[token])
        out.append(torch.einsum("hvk,hk->hv", state, q[token]))
    return torch.stack(out), state


def unit(x: Any) -> Any:
    """Of norm 1 along the last axis."""
    return x * (x.square().sum(dim=-1, keepdim=True) + 1e-6).rsqrt()


def gated_norm(self: Any, x: Any, g: Any, *_: Any, **__: Any) -> Any:
    """FusedRMSNormGated.forward"""
    import torch

    wide = x.float()
    normed = wide * (wide.square().mean(dim=-1, keepdim=True) + self.eps).rsqrt() * self.weight.float()
    gate = torch.sigmoid(g.float()) if self.activation == "sigmoid" else torch.nn.functional.silu(g.float())
    return (normed * gate).to(x.dtype)


def gated_shared_expert(hidden: Any, gate: Any, shared: Any, out: Any) -> None:
    """fused_gate_sigmoid_mul_add: adds the shared expert's output, as much of it as its gate says."""
    weight = (hidden.float() * gate.float()).sum(dim=-1, keepdim=True).sigmoid()
    out += (weight * shared.float()).to(out.dtype)


def kernels(_: ModuleType) -> None:
    """Where SGLang's modules import them from."""
    import torch

    mamba = ModuleType("sgl_kernel.mamba")
    for function in (causal_conv1d_fn_cpu, causal_conv1d_update_cpu, chunk_gated_delta_rule_cpu):
        setattr(mamba, function.__name__, function)
    sys.modules["sgl_kernel.mamba"] = mamba
    for operator in (fused_gdn_gating_cpu, fused_sigmoid_gating_delta_rule_update_cpu):
        setattr(torch.ops.sgl_kernel, operator.__name__, operator)


def norms(module: ModuleType) -> None:
    module.FusedRMSNormGated.forward = gated_norm


def experts(module: ModuleType) -> None:
    module.fused_gate_sigmoid_mul_add = gated_shared_expert  # type: ignore[attr-defined]


AFTER_IMPORT: dict[str, Callable[[ModuleType], None]] = {
    "sgl_kernel": kernels,
    "sglang.kernels.ops.attention.fla.fused_norm_gate": norms,
    "sglang.kernels.ops.elementwise.elementwise": experts,
}
