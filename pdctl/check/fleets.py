"""A fleet file's pools as groups: what each pool's engines would register, derived from the model's config."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pdctl.check.groups import Group
from pdctl.derive import Derived, Request, derive
from pdctl.derive.flags import apply, apply_environment
from pdctl.errors import ConfigError, InputError
from pdctl.fleet import LoadedFleet, Pool
from pdctl_transfer.layout.manifest import Role
from pdctl_transfer.rules import Evidence, Finding, Side

#: Codes with which a derivation says that the engine would not start: findings of a check, not unusable input.
WOULD_NOT_START = frozenset({"PD1004", "PD1019"})

MAX_CONFIG_BYTES = 16 << 20


def fleet_groups(loaded: LoadedFleet, platform: str | None = None, model: Path | None = None) -> Iterator[Group]:
    """One group a prefill or decode pool that has replicas. Raises ConfigError for a config that is not understood."""
    for pool in (*loaded.pools("prefill"), *loaded.pools("decode")):
        if pool.members:
            yield _group(loaded, pool, platform, model)


def derive_pool(loaded: LoadedFleet, pool: Pool, platform: str | None = None, model: Path | None = None) -> Derived:
    """The layout of one engine of the pool, each value with its line in the fleet file."""
    return derive(_request(loaded, pool, platform, model))


def _group(loaded: LoadedFleet, pool: Pool, platform: str | None, model: Path | None) -> Group:
    role: Role = "prefill" if pool.role == "prefill" else "decode"
    members = tuple(pool.members)
    try:
        derived = derive_pool(loaded, pool, platform, model)
    except ConfigError as error:
        if error.code not in WOULD_NOT_START:
            raise
        line = Evidence(loaded.where(pool.key), f"{pool.key}: attn_tp {pool.attn_tp}, page_size {pool.page_size}")
        evidence = (line, Evidence(error.where or "config.json", error.message))
        finding = Finding(error.code, pool.name, evidence, {"what": f"{role}: {error.message}"})
        return Group(role, pool.name, members, blocked=(finding,))
    sources = {**derived.sources, "manifest": Evidence(loaded.where(pool.key), "")}
    return Group(role, pool.name, members, (Side(derived.manifest, pool.name, sources),), notes=derived.notes)


def _request(loaded: LoadedFleet, pool: Pool, platform: str | None, model: Path | None) -> Request:
    engine = pool.engine or loaded.fleet.engine
    config, source = model_config(loaded, engine, model)
    keys = {
        "tp": "attn_tp",
        "pp": "pp",
        "dp": "dp",
        "cp": "cp",
        "page_size": "page_size",
        "kv_cache_dtype": "kv_cache_dtype",
    }
    origins = {field: loaded.source(f"{pool.key}.{key}") for field, key in keys.items()}
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
    request = apply_environment(request, pool.env, loaded.where(f"{pool.key}.env"))
    return apply(request, pool.args, loaded.where(f"{pool.key}.args"))


def model_config(loaded: LoadedFleet, engine: str, model: Path | None = None) -> tuple[Mapping[str, Any], str]:
    """The model's config and the file it stands in. `model`: a folder to read it from instead of the fleet's.

    Raises InputError (PD0022) where there is none on this machine: a check never guesses a model's geometry.
    """
    where = loaded.source("model.path")
    name = loaded.model_path
    if model is None and name.startswith("builtin:"):
        return _builtin(name, engine, where)
    folder = model or Path(name).expanduser()
    path = folder / "config.json"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        hint = "give the folder with the model's config.json, no weights needed: pdctl check … --model DIR"
        place = "--model" if model else where
        raise InputError(f"{path} cannot be read: {reason}", where=place, code="PD0022", hint=hint) from error
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(f"larger than {MAX_CONFIG_BYTES >> 20} MiB", where=str(path))
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not JSON: {error}", where=str(path)) from None
    if not isinstance(config, dict):
        raise ConfigError("found no object at its top", where=str(path))
    return config, str(path)


def _builtin(name: str, engine: str, where: str) -> tuple[Mapping[str, Any], str]:
    if engine == "reference":
        from pdctl.engines.reference.config import load_config

        return load_config(name).raw, name
    from pdctl.engines.builtin_models import CONFIGS

    config = CONFIGS.get(name.removeprefix("builtin:"))
    if config is None:
        known = ", ".join(f"builtin:{known}" for known in CONFIGS)
        raise InputError(f"no {name} for {engine}", where=where, code="PD0022", hint=f"there are {known}")
    return config, name
