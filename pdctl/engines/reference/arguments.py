"""Command line flags of an engine, named as SGLang names them where it has them."""

import argparse
from collections.abc import Sequence

from pdctl.engines.reference.options import BACKENDS, DTYPES, ROLES, EngineOptions


def make_parser() -> argparse.ArgumentParser:
    """The parser of the engine's flags; the flag table of `check` is made from it."""
    default = EngineOptions()
    parser = argparse.ArgumentParser(
        prog="python -m pdctl.engines.reference",
        description="A small hybrid language model on the CPU, speaking SGLang's HTTP, alone or as one side of a pair.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--model", "--model-path", default=default.model, help="builtin:NAME, or a folder with a config.json")
    add("--served-model-name", help="the name that clients use (default: the last part of --model)")
    add(
        "--role",
        "--disaggregation-mode",
        choices=ROLES,
        default=default.role,
        help="the whole engine, or one side of a pair",
    )
    add("--host", default=default.host, help="address of the HTTP server")
    add("--port", type=int, default=default.port, help="port of the HTTP server")
    add("--tp", "--tp-size", type=int, default=default.tp, help="tensor-parallel ranks of a stage")
    add("--pp", "--pp-size", type=int, default=default.pp, help="pipeline stages")
    add("--dp", "--dp-size", type=int, default=default.dp, help="attention-DP groups that the ranks form")
    add("--page-size", type=int, default=default.page_size, help="tokens of a KV page")
    add("--dtype", choices=DTYPES, default=default.dtype, help="of weights, KV cache and state")
    add("--max-total-tokens", type=int, default=default.max_total_tokens, help="tokens in the KV pages of a group")
    add("--max-running-requests", type=int, default=default.max_running, help="requests with a place, in each group")
    add(
        "--prefix-cache-tokens",
        type=int,
        default=default.prefix_tokens,
        help="tokens of prompts kept for reuse; 0: none",
    )
    add("--speculative-algorithm", choices=("NEXTN",), help="propose tokens with the model's draft layer")
    add("--bootstrap-host", help="address of the registry (prefill; default: --host)")
    add(
        "--bootstrap-port", "--disaggregation-bootstrap-port", type=int, default=default.bootstrap_port,
        help="port of the registry (prefill)",
    )  # fmt: skip
    add(
        "--transfer-backend", "--disaggregation-transfer-backend", choices=BACKENDS, default=default.backend,
        help="what moves the state",
    )  # fmt: skip
    add("--transfer-protocol", default=default.protocol, help="what the backend is asked to use: tcp, rdma")
    add("--transfer-devices", default=default.devices, help="HCAs that Mooncake may use, with commas (default: any)")
    add(
        "--session", action="append", default=[], metavar="NAME=VALUE",
        help="an option of the transfer session: bootstrap_s=60, verify=full, …; a secret in PDCTL_TRANSFER_SECRET",
    )  # fmt: skip
    return parser


def parse_arguments(arguments: Sequence[str]) -> EngineOptions:
    """Options from flags; argparse exits with status 2 and the usage on a wrong one."""
    given = make_parser().parse_args(arguments)
    return EngineOptions(
        model=given.model,
        served_name=given.served_model_name,
        role=given.role,
        host=given.host,
        port=given.port,
        tp=given.tp,
        pp=given.pp,
        dp=given.dp,
        page_size=given.page_size,
        dtype=given.dtype,
        max_total_tokens=given.max_total_tokens,
        max_running=given.max_running_requests,
        prefix_tokens=given.prefix_cache_tokens,
        draft=given.speculative_algorithm is not None,
        bootstrap_host=given.bootstrap_host,
        bootstrap_port=given.bootstrap_port,
        backend=given.transfer_backend,
        protocol=given.transfer_protocol,
        devices=given.transfer_devices,
        session=tuple(given.session),
    )
