"""vllm-ascend: vLLM's plugin for NPUs, with connectors of its own."""
