"""Plugins that the engines load through their own entry points: SGLang's `sglang.srt.plugins`, vLLM's
`vllm.general_plugins`.

Inside the engine they export the live layout, refuse a peer whose layout does not fit before any byte moves, and
report each transfer. They change no result. `PDCTL_PLUGIN=off` turns them off, and whatever fails inside them is
logged and leaves the engine as it was.
"""
