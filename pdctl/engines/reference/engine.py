"""One engine: a model, the groups of ranks that hold requests, and the steps that move a request on.

Each request is computed alone, in chunks that end at fixed positions, so its result does not depend on what else is
running.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

import pdctl
from pdctl.derive.config import Config
from pdctl.derive.model import config_digest, values_digest
from pdctl.engines.reference.allocator import Allocator, Place, pages_for
from pdctl.engines.reference.config import ModelConfig, load_config
from pdctl.engines.reference.model import CHUNK, Model
from pdctl.engines.reference.options import EngineOptions, check_options
from pdctl.engines.reference.pools import Pools, Sizes, components
from pdctl.engines.reference.prefix import PrefixCache
from pdctl.engines.reference.request import Failure, Request
from pdctl.engines.reference.sampling import choose, finite
from pdctl.engines.reference.span import Span
from pdctl.engines.reference.weights import Shard
from pdctl_transfer.layout import manifest as layout

NAME = "reference"


class Group:
    """The ranks of all stages that share requests (one attention-DP group): pools `[stage][rank]`."""

    def __init__(self, model: Model, options: EngineOptions) -> None:
        sizes = Sizes(options.pages, options.max_running, options.max_running)
        self.allocator = Allocator(sizes)
        self.prefixes = PrefixCache(options.prefix_tokens, math.lcm(CHUNK, options.page_size), options.page_size)
        self.pools = [
            [Pools(model.buffers(stage, options.page_size), Shard(model.tp, rank), sizes) for rank in range(model.tp)]
            for stage in range(model.pp)
        ]

    @property
    def ranks(self) -> list[Pools]:
        """The pools of all ranks, stage by stage."""
        return [pools for ranks in self.pools for pools in ranks]

    def take(self, pages: int) -> Place | None:
        """A cleared place with so many pages, or None if there is no room now."""
        place = self.allocator.take(pages)
        if place is not None:
            for pools in self.ranks:
                pools.clear("page", place.pages)
                pools.clear("slot", [place.slot])
                pools.clear("row", [place.row])
        return place


class Engine:
    """The model and its groups; not thread-safe, the scheduler's thread owns it."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.config: ModelConfig = load_config(options.model)
        check_options(options, self.config)
        torch.set_num_threads(1)
        self.name = options.served_name or self.config.name
        dtype: torch.dtype = getattr(torch, options.dtype)
        self.model = Model(self.config, dtype=dtype, tp=options.attn_tp, pp=options.pp, draft=options.draft)
        self.groups = [Group(self.model, options) for _ in range(options.dp)]

    def place(self, request: Request) -> bool:
        """Give a waiting request its place, for all the tokens it may come to; False if there is no room now.

        A prefill engine only ever holds the prompt.
        """
        new = 0 if self.options.role == "prefill" else request.sampling.max_new_tokens
        pages = pages_for(len(request.prompt) + new, self.options.page_size)
        request.place = self.groups[request.group].take(pages)
        return request.place is not None

    def fits(self, prompt: int, new: int) -> Failure | None:
        """Why a request of this size can never run here, or None."""
        limit = min(self.config.max_positions, self.options.pages * self.options.page_size)
        if prompt + new <= limit:
            return None
        return Failure("PD3051", f"{prompt} prompt tokens and {new} new ones exceed the {limit} that fit here", 400)

    @torch.inference_mode()
    def prefill(self, request: Request) -> None:
        """Compute the next chunk of the prompt; with its last one, the first token."""
        if request.done == 0:
            self._reuse(request)
        start = request.done
        end = min(len(request.prompt), start - start % CHUNK + CHUNK)
        tokens = request.prompt[start:end]
        hidden = self._forward(request, tokens, start)
        request.computed += end - start
        following = list(request.prompt[start + 1 : end + 1])
        if end == len(request.prompt):
            following.append(self._emit(request, hidden, tokens[-1]))
        if self.model.draft and not request.failure:
            request.proposal = self._propose(request, hidden, following, start)
        group, place = self._whereabouts(request)
        group.prefixes.keep(request.prompt, end, place, group.ranks, hidden[-1:])

    def _reuse(self, request: Request) -> None:
        """Take over what is known of the prompt's beginning.

        The draft's last entry depends on the token that follows, which may be another one now: it is made again.
        """
        group, place = self._whereabouts(request)
        request.done, hidden = group.prefixes.restore(request.prompt, place, group.ranks)
        request.cached = request.done
        if hidden is not None and self.model.draft:
            self._propose(request, hidden, [request.prompt[request.done]], request.done - 1)

    @torch.inference_mode()
    def decode(self, request: Request) -> None:
        """One verified step: the last token, and the draft's proposal too where it proves right."""
        proposal = request.proposal
        self._step(request)
        if proposal is None or request.failure:
            return
        request.verified += 1
        request.proposals.append(proposal)
        if request.output[-1] == proposal:
            request.accepted += 1
            if not request.finish:
                self._step(request)

    def _step(self, request: Request) -> None:
        position, last = request.tokens - 1, request.output[-1]
        hidden = self._forward(request, [last], position)
        token = self._emit(request, hidden, last)
        if self.model.draft and not request.failure and not request.finish:
            request.proposal = self._propose(request, hidden, [token], position)

    def _forward(self, request: Request, tokens: Sequence[int], start: int) -> Tensor:
        hidden = self.model.forward(self._span(request, tokens, start), self.groups[request.group].pools)
        request.done = start + len(tokens)
        return hidden

    def _propose(self, request: Request, hidden: Tensor, following: Sequence[int], start: int) -> int:
        return self.model.propose(hidden, self._span(request, following, start), self.groups[request.group].pools)

    def _emit(self, request: Request, hidden: Tensor, last: int) -> int:
        logits = self.model.logits(hidden[-1], last)
        token, logprob = choose(logits, request.sampling, request.seed, request.tokens)
        if not finite(logprob):
            request.failure = Failure("PD3055", f"the model's output is not a number at token {request.tokens}")
        request.add(token, logprob, self.config.eos)
        return token

    def _whereabouts(self, request: Request) -> tuple[Group, Place]:
        if request.place is None:
            raise RuntimeError(f"request {request.rid} computes without a place")
        return self.groups[request.group], request.place

    def _span(self, request: Request, tokens: Sequence[int], start: int) -> Span:
        _, place = self._whereabouts(request)
        return Span(
            torch.tensor(tokens, dtype=torch.int64), start, place.pages, place.slot, place.row, self.options.page_size
        )

    def manifest(self) -> layout.Manifest:
        """The layout of what is in memory now."""
        options, model, config = self.options, self.model, self.config
        read = Config(config.raw, config.source)
        return layout.Manifest(
            role="decode" if options.role == "decode" else "prefill",
            origin="live",
            engine=layout.Engine(NAME, pdctl.__version__),
            model=layout.Model(self.name, config.family, config_digest(read), values_digest(read)),
            transfer=layout.Transfer(options.backend, None),
            parallel=layout.Parallel(attn_tp=options.attn_tp, attn_cp=1, pp=options.pp, dp=options.dp),
            page_size=options.page_size,
            kv_cache_dtype=options.dtype,
            kv_layout="nhd",
            speculative={"algorithm": "NEXTN", "num_steps": 1} if options.draft else None,
            stages=tuple(
                layout.Stage(
                    stage,
                    (layers.start, layers.stop),
                    components(self.groups[0].pools[stage][0].buffers, Shard(model.tp, 0)),
                )
                for stage, layers in enumerate(model.stages)
            ),
        )
