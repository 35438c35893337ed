"""The layout of a running vLLM engine.

With the plugin: `GET /pdctl/layout` on the engine's HTTP port, all pipeline stages. Without it, over NIXL: what the
engine says on the side channel on which decode engines ask prefill engines. Block size, block length and order of axes
as it registered them, on the geometry of the model's config.json where that lies on this host.

Only ranks that exist may be asked there: vLLM's listener ends, and the engine with it, on a rank it does not know.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from pdctl.engines.deadline import Deadline
from pdctl.engines.http import LIMIT_BYTES, Unreachable, get_json
from pdctl.engines.live import CollectError, Running, config_of, from_url
from pdctl.errors import InputError
from pdctl.fleet.urls import authority
from pdctl_transfer.layout.manifest import Manifest, Role
from pdctl_transfer.plugins.peer import ROUTE
from pdctl_transfer.plugins.vllm_layout import of_peer

_ASK: Final = b"get_meta_msg"
_MEANINGLESS: Final = (
    LookupError,
    TypeError,
    AttributeError,
    ValueError,
    ArithmeticError,
    StopIteration,
    RecursionError,
)
"""What numbers and names that mean nothing may bring; msgspec's DecodeError is a ValueError."""


def collect(running: Running, timeout_s: float) -> Manifest:
    """The engine's layout. Raises CollectError or ManifestError."""
    deadline = Deadline(timeout_s)
    layout = from_url(f"{running.url}{ROUTE}", deadline.left(), running.key)
    if layout is not None:
        return layout
    place = running.places.get("side_channel")
    if place is None:
        raise CollectError(f"no pdctl plugin in {running.name}, and it has no NIXL side channel")
    return without_plugin(running, ask(*place, deadline.left()), deadline.left())


def ask(host: str, port: int, timeout_s: float) -> Mapping[str, Any]:
    """What the first rank says at the handshake. Raises CollectError."""
    try:
        import zmq
    except ModuleNotFoundError as missing:
        raise CollectError("vLLM's side channel speaks ZeroMQ: pip install 'pdctl[vllm]'") from missing
    context, where = zmq.Context(), authority(host, port)
    try:
        with context.socket(zmq.REQ) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVTIMEO, int(timeout_s * 1000))
            socket.setsockopt(zmq.SNDTIMEO, int(timeout_s * 1000))
            socket.setsockopt(zmq.MAXMSGSIZE, LIMIT_BYTES)
            socket.setsockopt(zmq.IPV6, 1)
            socket.connect(f"tcp://{where}")
            socket.send(msgspec.msgpack.encode((_ASK, 0, 0)))
            answer = msgspec.msgpack.decode(socket.recv_multipart()[0])
    except zmq.ZMQError as failure:
        raise CollectError(f"side channel {where}: {failure}".lower()) from failure
    except (msgspec.DecodeError, RecursionError) as failure:
        raise CollectError(f"side channel {where}: not a handshake answer: {failure}") from failure
    finally:
        context.term()
    if not isinstance(answer, Mapping) or "agent_metadata_bytes" not in answer:
        raise CollectError(f"side channel {where}: not a handshake answer")
    return answer


def without_plugin(running: Running, answer: Mapping[str, Any], timeout_s: float) -> Manifest:
    """Registered block size and lengths on the geometry of the model that the engine says it serves."""
    from pdctl.derive import Request, derive

    role: Role = "prefill" if running.role == "prefill" else "decode"
    try:
        metadata = SimpleNamespace(**msgspec.msgpack.decode(answer["agent_metadata_bytes"]))
        served = get_json(f"{running.url}/v1/models", timeout_s, key=running.key)["data"][0]
        config, source = config_of(running, str(served["root"]))
        name = str(served["id"]).rsplit("/", 1)[-1]
        asked = Request(engine="vllm", role=role, config=config, config_source=source, model_name=name)
        asked = replace(asked, page_size=metadata.block_size * metadata.physical_blocks_per_logical_kv_block)
        whole = derive(asked).manifest
        tp = _tp(whole, metadata)
        own = derive(replace(asked, tp=tp)).manifest
    except (Unreachable, InputError, *_MEANINGLESS) as failure:
        raise CollectError(
            f"no pdctl plugin in {running.name}, and its layout cannot be rebuilt: {failure}"
        ) from failure
    return replace(of_peer(metadata, own, tp), role=role, origin="live")


def _tp(whole: Manifest, metadata: Any) -> int:
    """The TP size at which a layer's pages have the length that was registered."""
    entry = next(e for s in whole.stages for c in s.components for e in c.entries if e.tensor in ("kv", "latent"))
    ratio = metadata.physical_blocks_per_logical_kv_block
    return max(1, entry.item_len // (metadata.block_lens[0] * ratio)) if entry.sharding == "split" else 1
