"""Router flags that take no value, by router. A test compares them with the installed routers' own parsers."""

_SHARED = frozenset(
    {
        "--disable-circuit-breaker",
        "--disable-retries",
        "--enable-igw",
        "--service-discovery",
    }
)

SGLANG_ROUTER = _SHARED | {
    "--control-plane-audit-enabled",
    "--disable-health-check",
    "--dp-aware",
    "--enable-trace",
    "--mini-lb",
    "--pd-disaggregation",
    "--tokenizer-cache-enable-l0",
    "--tokenizer-cache-enable-l1",
}

SMG = (SGLANG_ROUTER - {"--mini-lb"}) | {
    "--disable-load-monitoring",
    "--disable-tokenizer-autoload",
    "--disable-worker-overload-protection",
    "--dp-minimum-tokens-scheduler",
    "--enable-mesh",
    "--enable-rl",
    "--enable-wasm",
    "--epd-disaggregation",
    "--log-json",
    "--log-mm-timing",
    "--mm-allow-private-media-hosts",
    "--mm-pixel-rdma",
    "--no-remove-unhealthy-workers",
    "--no-worker-auto-recovery",
    "--oracle-external-auth",
    "--priority-scheduler-enabled",
    "--remove-unhealthy-workers",
    "--routing-key-override",
    "--sticky-sessions",
    "--tenant-rate-limit-enabled",
    "--trust-tenant-header",
    "--upstream-http2",
    "--worker-auto-recovery",
    "--worker-overload-protection",
    "--worker-overload-shed",
}

VLLM_ROUTER = _SHARED | {"--enable-program-scheduling", "--mini-lb", "--vllm-pd-disaggregation"}
