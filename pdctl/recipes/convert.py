"""One launch recipe in YAML, as srt-slurm and InferenceX publish them, to a fleet.

`backend.{sglang,vllm}_config.{prefill,decode}` are the engines' flags: sizes become fields, the rest `args`.
`resources` counts workers, `backend.*_environment` are variables. What the fleet does not hold is returned beside it.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from pdctl.errors import InputError
from pdctl.flags import load
from pdctl.recipes.engines import ENGINES, Role
from pdctl.recipes.left import NO_FIELD, SECTIONS, Left, all_of
from pdctl.recipes.nodes import carried as carried_nodes
from pdctl.recipes.nodes import nodes_of, unplaced
from pdctl.recipes.words import names, words

ROLES: Final = ("prefill", "decode")
#: `resources.gpu_type` by the beginning of its word: the platform whose defaults the engines take.
PLATFORMS: Final[Mapping[str, str]] = {"gb": "sm100", "b2": "sm100", "b3": "sm100", "h1": "hopper", "h2": "hopper"}
DYNAMO: Final = "dynamo"
"""What stands before the engines where a recipe names nothing."""
#: `frontend.type` by the kind of router that pdctl calls it, where the two differ.
FRONTENDS: Final[Mapping[str, str]] = {"sglang": "sglang-router", "llm_d": "llm-d"}
#: A container that is called by its release alone.
_RELEASE: Final = re.compile(r"(?:sglang-|vllm-)?v?(\d+\.\d+\.\d+(?:\.post\d+)?)(?:-cu\d+)?")
#: As an identity states a release.
_STATED: Final = re.compile(r"\d+\.\d+\.\d+[0-9A-Za-z.+]*")
_NOT_A_NAME: Final = re.compile(r"[^a-z0-9]+")


class Converted(Struct, frozen=True):
    """A fleet of `pdctl.fleet/v1` as plain data, where it would run, and every line of the recipe that it lacks."""

    fleet: Mapping[str, Any]
    platform: str | None
    left: tuple[Left, ...]


def convert(recipe: Mapping[str, Any]) -> Converted:
    """The fleet of one launch (one of `variants`). Raises InputError where it has no prefill and decode engine."""
    backend = _section(recipe, "backend")
    engine = _engine(backend)
    settings = {role: dict(_section(recipe, "backend", f"{engine}_config", role)) for role in ROLES}
    left: list[Left] = []
    fleet: dict[str, Any] = {
        "schema": "pdctl.fleet/v1",
        "name": _name(recipe),
        "model": {"path": str(_section(recipe, "model").get("path") or "model")},
        "engine": engine,
        **_version(recipe, engine),
    }
    fleet |= ENGINES[engine].shared(fleet, settings, backend, left)
    for role in ROLES:
        fleet[role] = _pool(engine, role, settings[role], recipe, left)
    fleet |= _router(recipe, left)
    _leave(recipe, engine, left)
    return Converted(fleet, _platform(recipe), tuple(left))


def _section(recipe: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = recipe
    for index, key in enumerate(keys):
        below = found.get(key)
        if not isinstance(below, Mapping):
            raise InputError("is no mapping, or is missing", where=".".join(keys[: index + 1]))
        found = below
    return found


def _engine(backend: Mapping[str, Any]) -> str:
    given = [engine for engine in ENGINES if isinstance(backend.get(f"{engine}_config"), Mapping)]
    if len(given) != 1:
        raise InputError(f"expected one of {', '.join(f'{name}_config' for name in ENGINES)}", where="backend")
    return given[0]


def _name(recipe: Mapping[str, Any]) -> str:
    word = _NOT_A_NAME.sub("-", str(recipe.get("name") or "").lower()).strip("-")
    return word[:40].strip("-") or "recipe"


def _at(recipe: Mapping[str, Any], *keys: str) -> Any:
    """What stands at a place, or None."""
    found: Any = recipe
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _version(recipe: Mapping[str, Any], engine: str) -> dict[str, str]:
    """What states the engine's release: the recipe's own word for it, or a container that is called by it."""
    stated, container = _at(recipe, *_identity(engine)), _at(recipe, "model", "container")
    if _STATED.fullmatch(str(stated)):
        return {"engine_version": str(stated)}
    found = _RELEASE.fullmatch(str(container))
    return {"engine_version": found[1]} if found else {}


def _pool(
    engine: str, role: Role, given: dict[str, Any], recipe: Mapping[str, Any], left: list[Left]
) -> dict[str, Any]:
    """The pool of a role. `given`: the settings that no field of the whole fleet holds."""
    kind, key = ENGINES[engine], f"backend.{engine}_config.{role}"
    nodes = nodes_of(_section(recipe, "resources"), role) or 1
    pool = {"replicas": _count(recipe, f"{role}_workers"), **({"nodes": nodes} if nodes > 1 else {}), **_image(recipe)}
    keys = names(load(engine), given)
    hybrid = keys.get("--data-parallel-hybrid-lb", "")
    if nodes > 1 and given.get(hybrid) is True:
        del given[hybrid]
        pool["load_balancing"] = "hybrid"
    pool |= kind.fields(role, given, keys, left)
    args: list[str] = []
    for name, value in given.items():
        if value is None or value is False:
            left.append(Left(f"{key}.{name}", "false or null: the flag is not given"))
        else:
            args += words(name, value)
    backend = _section(recipe, "backend")
    env: dict[str, str] = {}
    for place, variables in (("environment", recipe), (f"{role}_environment", backend)):
        found = variables.get(place)
        env |= {str(name): str(value) for name, value in (found if isinstance(found, Mapping) else {}).items()}
    return {**pool, **({"args": args} if args else {}), **({"env": env} if env else {})}


def _image(recipe: Mapping[str, Any]) -> dict[str, str]:
    """The container: an image, or the cluster's own name for one, which tells no version."""
    image = _at(recipe, "identity", "container", "image") or _at(recipe, "model", "container")
    return {"image": str(image)} if image else {}


def _count(recipe: Mapping[str, Any], key: str) -> int:
    found = _section(recipe, "resources").get(key, 1)
    if not isinstance(found, int) or isinstance(found, bool):
        raise InputError(f"found {found!r}, expected a number", where=f"resources.{key}")
    return found


def _platform(recipe: Mapping[str, Any]) -> str | None:
    word = str(_section(recipe, "resources").get("gpu_type") or "").lower()
    return next((platform for begin, platform in PLATFORMS.items() if word.startswith(begin)), None)


def _router(recipe: Mapping[str, Any], left: list[Left]) -> dict[str, Any]:
    """The router that stands before the engines, by the kind that pdctl calls it; Dynamo's where none is named."""
    front = recipe.get("frontend")
    front = front if isinstance(front, Mapping) else {}
    args, env = (found if isinstance(found := front.get(key), Mapping) else {} for key in ("args", "env"))
    given: list[str] = []
    for name, value in args.items():
        if value is None or value is False:
            left.append(Left(f"frontend.args.{name}", "false or null: the flag is not given"))
        else:
            given += words(name, value)
    said = str(front.get("type") or DYNAMO)
    router: dict[str, Any] = {"kind": FRONTENDS.get(said, said)}
    router |= {"args": given} if given else {}
    router |= {"env": {str(name): str(value) for name, value in env.items()}} if env else {}
    return {"router": router}


def _leave(recipe: Mapping[str, Any], engine: str, left: list[Left]) -> None:
    """Every line that no other step carried or left, with its reason."""
    carried = {
        *("name", "environment", "model.path", "model.container"),
        *(f"frontend.{key}" for key in ("type", "args", "env")),
        *("backend.type", f"backend.{engine}_config", "resources.gpu_type"),
        *(f"backend.{role}_environment" for role in ROLES),
        *(f"resources.{role}_workers" for role in ROLES),
        *carried_nodes(_section(recipe, "resources"), ROLES),
        *(("backend.connector",) if engine == "vllm" else ()),
        *(("identity.container.image",) if _at(recipe, "identity", "container", "image") else ()),
        *((f"identity.frameworks.{engine}",) if _STATED.fullmatch(str(_at(recipe, *_identity(engine)))) else ()),
    }
    lines = (one for key, value in recipe.items() for one in all_of(value, str(key), SECTIONS.get(str(key), NO_FIELD)))
    left += [one for one in lines if not any(f"{one.key}.".startswith(f"{key}.") for key in carried)]
    left += unplaced(_section(recipe, "resources"), ROLES)


def _identity(engine: str) -> tuple[str, str, str]:
    return ("identity", "frameworks", engine)
