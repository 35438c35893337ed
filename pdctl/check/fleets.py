"""A fleet file's pools as groups: what each pool's engines would register, derived from the model's config."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from pdctl.check import connectors
from pdctl.check.flag_rules.unjudged import swapped_by
from pdctl.check.groups import Group
from pdctl.check.moves import moves_of
from pdctl.check.releases import of_pool
from pdctl.check.words import words
from pdctl.derive import Derived, Request, derive
from pdctl.derive.bare import bare
from pdctl.derive.config import Config
from pdctl.derive.connectors import Connector
from pdctl.derive.defaults import filled
from pdctl.derive.flags import apply, apply_environment, apply_options
from pdctl.derive.source import read_config, with_draft
from pdctl.engines.core import CONNECTOR, MODULE
from pdctl.engines.models import is_there, missing, require_builtin
from pdctl.errors import ConfigError, MalformedConfigError, UnknownDraftError
from pdctl.fleet import LoadedFleet, Pool
from pdctl_transfer.layout.manifest import Engine, Role, Transfer
from pdctl_transfer.rules import Evidence, Finding, Side
from pdctl_transfer.rules.pair import CORE_BACKEND

#: Codes with which a derivation says that the engine would not start: findings of a check, not unusable input.
WOULD_NOT_START = frozenset({"PD1004", "PD1019"})

SIZES = ("tp", "pp", "dp", "cp")
"""Sizes that the file leaves out are 1 by pdctl, and not the engine's."""


class Elsewhere(Struct, frozen=True):
    """What is judged instead of what the fleet file says: folders to read configs from, the core's connector."""

    model: Path | None = None
    draft: Path | None = None
    by_core: bool = False


NOWHERE = Elsewhere()


def fleet_groups(loaded: LoadedFleet, platform: str | None = None, elsewhere: Elsewhere = NOWHERE) -> Iterator[Group]:
    """One group a prefill or decode pool that has replicas.

    A model whose layout is not known makes the group's `unknown`. Raises ConfigError for a config that cannot be read,
    or has a value that no engine would take.
    """
    for pool in (*loaded.pools("prefill"), *loaded.pools("decode")):
        if pool.members:
            yield _group(loaded, pool, platform, elsewhere)


def derive_pool(
    loaded: LoadedFleet, pool: Pool, platform: str | None = None, elsewhere: Elsewhere = NOWHERE
) -> Derived:
    """The layout of one engine of the pool, each value with its line in the fleet file."""
    return derive(_request(loaded, pool, platform, elsewhere))


def _group(loaded: LoadedFleet, pool: Pool, platform: str | None, elsewhere: Elsewhere) -> Group:
    role: Role = "prefill" if pool.role == "prefill" else "decode"
    request = _request(loaded, pool, platform, elsewhere)
    draft = None
    try:
        try:
            derived = derive(request)
        except UnknownDraftError as error:
            draft = error.message
            derived = derive(structs.replace(request, without_draft=True))
    except MalformedConfigError:
        raise
    except ConfigError as error:
        if error.code == ConfigError.code:
            return _unknown(_made(loaded, pool, request, bare(request)), error)
        if error.code not in WOULD_NOT_START:
            raise
        page = f", page_size {pool.page_size}" if pool.page_size else ""
        line = Evidence(loaded.where(pool.key), f"{pool.key}: attn_tp {pool.attn_tp}{page}")
        evidence = (line, Evidence(error.where or "config.json", error.message))
        finding = Finding(error.code, pool.name, evidence, {"what": f"{role}: {error.message}"})
        return Group(role, pool.name, tuple(pool.members), blocked=(finding,), stated=of_pool(loaded, pool))
    group = structs.replace(_made(loaded, pool, request, derived), draft=draft)
    swap = swapped_by(request.engine, group.words, group.manifest)
    if swap is None:
        return group
    word, does = swap
    what = f"{pool.name}: {word.name} {does}"
    finding = Finding("PD1034", pool.name, (Evidence(word.where, word.value),), {"what": what})
    return structs.replace(group, unknown=what, outcomes=(finding,))


def _unknown(group: Group, error: ConfigError) -> Group:
    """The group without a layout, and why: once, however many pools the model has."""
    evidence = (Evidence(error.where or "config.json", error.message),)
    return structs.replace(
        group, unknown=error.message, outcomes=(Finding("PD1034", "model", evidence, {"what": error.message}),)
    )


def _made(loaded: LoadedFleet, pool: Pool, request: Request, derived: Derived) -> Group:
    """A pool's group with what was derived of it."""
    stated = of_pool(loaded, pool)
    manifest = derived.manifest
    core = manifest.transfer.backend == CORE_BACKEND
    if core:  # what carries the core's bytes is what the engine says of itself, too
        manifest = structs.replace(manifest, transfer=Transfer(loaded.fleet.transfer.backend))
    if not stated.assumed:
        manifest = structs.replace(manifest, engine=Engine(manifest.engine.name, stated.stated))
    sources = {**_sources(loaded, pool), **derived.sources}
    sources["engine_version"] = Evidence(stated.source or "assumed, for no version is stated", "")
    positions = filled(Config(request.config, "config.json")).get("max_position_embeddings")
    given = tuple(words(request.engine, pool.args, arg_places(loaded, pool)))
    tree = Connector(CONNECTOR, module=MODULE) if core else connectors.stated(loaded, pool)
    return Group(
        manifest.role,
        pool.name,
        tuple(pool.members),
        (Side(manifest, pool.name, sources),),
        notes=(*derived.notes, *connectors.notes(pool.name, tree, given)),
        words=given,
        connector=tree,
        moves=moves_of(loaded, pool),
        max_positions=positions if isinstance(positions, int) else None,
        stated=stated,
    )


def _sources(loaded: LoadedFleet, pool: Pool) -> dict[str, Evidence]:
    """Origins of what the fleet file says and a derivation takes as it is."""
    lines = {
        "engine": loaded.source(f"{pool.key}.engine" if pool.engine else "engine"),
        "model": loaded.source("model.name" if loaded.fleet.model.name else "model.path"),
        "family": loaded.source("model.path"),
        "config_digest": loaded.source("model.path"),
        "speculative": loaded.source(f"{pool.key}.speculative"),
        "manifest": loaded.where(pool.key),
    }
    return {name: Evidence(line, "") for name, line in lines.items()}


def _request(loaded: LoadedFleet, pool: Pool, platform: str | None, elsewhere: Elsewhere) -> Request:
    engine = pool.engine or loaded.fleet.engine
    config, source = model_config(loaded, engine, elsewhere.model)
    keys = {
        "tp": "attn_tp",
        "pp": "pp",
        "dp": "dp",
        "cp": "cp",
        "page_size": "page_size",
        "kv_cache_dtype": "kv_cache_dtype",
    }
    origins = {
        field: loaded.source(f"{pool.key}.{key}")
        for field, key in keys.items()
        if field in SIZES or f"{pool.key}.{key}" in loaded  # what the file leaves out is else the engine's default
    }
    origins |= {
        "engine": loaded.source(f"{pool.key}.engine" if pool.engine else "engine"),
        "backend": loaded.source("transfer.backend"),
        "speculative": loaded.source(f"{pool.key}.speculative"),
    }
    request = Request(
        engine=engine,
        role=pool.role,  # type: ignore[arg-type]
        config=config,
        config_source=source,
        model_name=loaded.fleet.model.served_name,
        tp=pool.tp,
        pp=pool.pp,
        dp=pool.dp,
        cp=pool.cp,
        page_size=pool.page_size,
        kv_cache_dtype=pool.kv_cache_dtype,
        backend=loaded.fleet.transfer.backend,
        platform=platform,
        speculative=pool.speculative,
        origins=origins,
    )
    options, place = loaded.fleet.transfer.options, loaded.where("transfer.options")
    if elsewhere.by_core and engine == "vllm":
        options, place = {**options, "kv_connector": CONNECTOR}, loaded.where("transfer.core")
    request = apply_options(request, options, pool.args, place)
    lines = {name: loaded.where(f"{pool.key}.env.{name}") for name in pool.env}
    request = apply_environment(request, pool.env, lines)
    draft = elsewhere.draft or (Path(loaded.draft_path).expanduser() if loaded.draft_path else None)
    return with_draft(apply(request, pool.args, arg_places(loaded, pool)), draft)


def arg_places(loaded: LoadedFleet, pool: Pool) -> list[str]:
    """`file:line` of each word of the pool's `args`."""
    return [loaded.where(f"{pool.key}.args.{index}") for index in range(len(pool.args))]


def model_config(loaded: LoadedFleet, engine: str, model: Path | None = None) -> tuple[Mapping[str, Any], str]:
    """The model's config and the file it stands in. `model`: a folder to read it from instead of the fleet's.

    Raises InputError (PD0011, PD3104) where it is not there, ConfigError (PD0022) where the model has a name that only
    the engine resolves: a check never guesses a model's geometry.
    """
    where = loaded.source("model.path")
    name = loaded.model_path
    if model is None and name.startswith("builtin:"):
        return builtin_config(name, engine, where)
    try:
        return read_config(model or Path(name).expanduser())
    except ConfigError as error:
        if model is not None or error.hint is None:
            raise
        hint = f"{error.hint}: pdctl check … --model DIR"
        if not is_there(name):
            raise missing(name, where, hint) from None
        raise ConfigError(f"{error.where} {error.message}", where=where, hint=hint) from None


def builtin_config(name: str, engine: str, where: str) -> tuple[Mapping[str, Any], str]:
    """The config of one of pdctl's own tiny models, `builtin:NAME`. InputError (PD3104) where there is none such."""
    require_builtin(engine, name, where)
    if engine == "reference":
        from pdctl.engines.reference.config import config_path

        return read_config(config_path(name))
    from pdctl.engines.builtin_models import CONFIGS

    return CONFIGS[name.removeprefix("builtin:")], name
