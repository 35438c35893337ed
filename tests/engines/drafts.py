"""A tiny EAGLE draft of one of pdctl's built-in models, with real random weights."""

import json
from pathlib import Path

import numpy as np

from pdctl.engines.builtin_models import CONFIGS, attention, draw, materialise, mlp, safetensors


def write_draft(folder: Path, target: str) -> Path:
    """One layer over the target's embeddings and hidden states; the folder with its config and weights."""
    config = {**CONFIGS[target], "num_hidden_layers": 1}
    hidden = config["hidden_size"]
    shapes = {"fc.weight": (hidden, 2 * hidden), "layers.0.post_attention_layernorm.weight": (hidden,)}
    shapes |= dict(attention("layers.0", config)) | dict(mlp("layers.0.mlp", hidden, config["intermediate_size"]))
    random = np.random.default_rng(7)
    weights = safetensors({name: draw(random, name, shape) for name, shape in shapes.items()})
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (folder / name).write_bytes((materialise(target) / name).read_bytes())
    return folder
