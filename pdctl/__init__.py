"""The operator's command line and control plane for prefill/decode-disaggregated LLM fleets."""

__version__ = "0.1.0"
