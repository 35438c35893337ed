"""Run by the Python of an environment that has SGLang installed, with the core on its path: copiers of its own pools.

Prints, by pool, how many buffers it registers and how many of them the copier found in the pool's tensors, and whether
what the copier writes is what the pool's tensors hold then.
"""

import json


def main() -> None:
    import torch
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

    from pdctl_transfer.region import Region
    from pdctl_transfer.session.bytes.tensors import copier_for, torch_copier

    common = {"size": 256, "page_size": 16, "dtype": torch.bfloat16, "layer_num": 3, "device": "cpu"}
    common["enable_memory_saver"] = False
    pools = {
        "MHA": MHATokenToKVPool(head_num=2, head_dim=16, **common),
        "MLA": MLATokenToKVPool(kv_lora_rank=32, qk_rope_head_dim=16, **common),
    }
    said = {}
    for name, pool in pools.items():
        pointers, lengths, items = pool.get_contiguous_buf_infos()
        regions = [Region(at, length // item, item) for at, length, item in zip(pointers, lengths, items, strict=True)]
        copier = torch_copier({"other": torch.zeros(8), "pool": pool}, regions)
        for number, region in enumerate(copier._bytes):
            region.fill_(number + 1)
        tensors = [*pool.k_buffer, *pool.v_buffer] if name == "MHA" else pool.kv_buffer
        written = [int(tensor.view(torch.uint8).flatten()[0]) for tensor in tensors]
        said[name] = [len(regions), written, copier_for(pool, regions, pool.device) is None]
    print(json.dumps(said))


if __name__ == "__main__":
    main()
