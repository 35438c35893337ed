"""What SGLang 0.5.23 does of its own accord: tables that no config key tells.

Read from its model classes and its argument resolution, and seen in what it registers.
"""

from collections.abc import Mapping
from typing import Final

from pdctl.versions import PINNED

VERSION: Final = PINNED["sglang"]
DEFAULT: Final = f"default of SGLang {VERSION}"
"""The origin of what nobody said."""

#: Architectures whose sliding-window layers get a pool of their own (`swa`).
SPLITS_SLIDING: Final = frozenset(
    [
        "Llama4ForConditionalGeneration",
        "GptOssForCausalLM",
        "GraniteSWAForCausalLM",
        "GraniteMoeSWAForCausalLM",
        "IQuestQ1ForCausalLM",
        "MiMoV2ForCausalLM",
        "MiMoV2FlashForCausalLM",
        "Step3p5ForCausalLM",
        "Step3p7ForConditionalGeneration",
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
        "DiffusionGemmaForBlockDiffusion",
        "BeamForCausalLM",
        "LagunaForCausalLM",
        "MellumForCausalLM",
        "MuseGlimmerForCausalLM",
        "MuseGlimmerForConditionalGeneration",
    ]
)
#: Architectures with sliding-window layers that it keeps in one pool with the others.
KEEPS_SLIDING: Final = frozenset(
    [
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "Gemma3ForConditionalGeneration",
        "Gemma3nForCausalLM",
        "Gemma3nForConditionalGeneration",
        "Cohere2ForCausalLM",
        "Cohere2VisionForConditionalGeneration",
        "Cohere2MoeForCausalLM",
        "Olmo2ForCausalLM",
        "Olmo3ForCausalLM",
        "Exaone4ForCausalLM",
        "ExaoneMoEForCausalLM",
        "ExaoneMoeForCausalLM",
        "AfmoeForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "MistralForCausalLM",
        "Ministral3ForCausalLM",
        "Phi3ForCausalLM",
        "SmolLM3ForCausalLM",
        "LlamaForCausalLM",
    ]
)
#: Architectures that expose no start layer: with pipeline stages, the pool of every stage spans all layers.
SPANS_ALL_LAYERS: Final = frozenset(
    [
        "NemotronHForCausalLM",
        "NemotronHPuzzleForCausalLM",
        "NemotronH_Nano_VL_V2",
        "NemotronH_Nano_Omni_Reasoning_V3",
        "NemotronH_Omni_Reasoning_V3",
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
        "DiffusionGemmaForBlockDiffusion",
        "MiniMaxM2ForCausalLM",
        "GigaChat35ForCausalLM",
        "ZayaForCausalLM",
        "SolarForCausalLM",
        "OrionForCausalLM",
        "PersimmonForCausalLM",
    ]
)
#: Architectures whose classes have no pipeline stages at all.
NO_STAGES: Final = frozenset(
    [
        "Qwen3NextForCausalLM",
        "FalconH1ForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "Gemma3ForConditionalGeneration",
    ]
)
#: Architectures whose keys describe block-sparse attention that it does not recognise: it keeps plain K and V.
KEEPS_DENSE: Final = frozenset({"MiniMaxM3ForCausalLM"})

#: Values of --kv-cache-dtype that it takes and pdctl can lay out.
KV_DTYPES: Final = ("auto", "bf16", "bfloat16", "fp8_e4m3", "fp8_e5m2", "mxfp8", "nvfp4", "fp4_mx_block16")
#: Words of releases before it, whose pools were not seen.
OLDER_DTYPES: Final = frozenset({"fp4_e2m1"})
#: Those that a Blackwell GPU alone takes.
BLACKWELL_DTYPES: Final = frozenset({"mxfp8", "nvfp4"})

#: Page sizes that an attention backend takes; any other becomes the last of them.
BACKEND_PAGES: Final[Mapping[str, tuple[int, ...]]] = {
    "flashmla": (64,),
    "trtllm_mla": (32, 64),
    "cutedsl_mla": (32, 64),
    "trtllm_mha": (16, 32, 128, 64),
    "hpc_ops": (64,),
    "fa4": (128,),
}
