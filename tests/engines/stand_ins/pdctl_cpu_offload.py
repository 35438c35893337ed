"""Lets vLLM's OffloadingConnector keep blocks on a host without an accelerator: its own copies go by CUDA streams.

Named by `spec_name` and `spec_module_path` of the connector's config. One group of layers, one block a chunk.
"""

from typing import Any

from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class CopyingWorker(OffloadingWorker):  # type: ignore[misc]
    """Copies at once, block by block."""

    def __init__(self, caches: Any, chunks: int) -> None:
        self._blocks = [one.tensor for one in caches.tensors]
        self._kept = [tensor.new_empty((chunks, *tensor.shape[1:])) for tensor in self._blocks]
        self._done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        for blocks, kept in zip(self._blocks, self._kept, strict=True):
            kept[dst_spec.block_ids] = blocks[src_spec.block_ids]
        return self._end(job_id)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        for blocks, kept in zip(self._blocks, self._kept, strict=True):
            blocks[dst_spec.block_ids] = kept[src_spec.block_ids]
        return self._end(job_id)

    def _end(self, job_id: int) -> bool:
        self._done.append(TransferResult(job_id, True, 0, 0.0))
        return True

    def get_finished(self) -> list[TransferResult]:
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        pass


class CopyingSpec(CPUOffloadingSpec):  # type: ignore[misc]
    """The stock spec with that worker."""

    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        if self._worker is None:
            self._worker = CopyingWorker(kv_caches, self.num_chunks)
        return self._worker
