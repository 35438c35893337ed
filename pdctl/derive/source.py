"""Reading configs from disk, for those who derive: a model's folder, a draft model's folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from pdctl.derive import mistral
from pdctl.derive.drafts import draft_named
from pdctl.derive.request import Request
from pdctl.errors import ConfigError
from pdctl.inputs import CONFIG_FILES, config_file, read_input

MAX_BYTES: Final = 16 << 20


def read_config(folder: Path) -> tuple[Mapping[str, Any], str]:
    """The config.json of a model's folder, or what engines make of Mistral's params.json; and its path for messages.

    Raises ConfigError where there is none, or where it is not an object in JSON of at most 16 MiB.
    """
    path = folder if folder.name in CONFIG_FILES else (config_file(folder) or folder / CONFIG_FILES[0])
    hint = "give the folder with the model's config.json; weights are not needed"
    data = read_input(path, MAX_BYTES, ConfigError, ConfigError.code, hint)
    if len(data) > MAX_BYTES:
        raise ConfigError(f"larger than {MAX_BYTES >> 20} MiB", where=str(path))
    try:
        config = json.loads(data.decode("utf-8-sig"))
    except RecursionError:
        raise ConfigError("nested too deeply", where=str(path)) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"byte 0x{data[error.start]:02x} is not UTF-8", where=str(path), hint="save it so") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"not JSON: {error.msg.lower()}", where=f"{path}:{error.lineno}") from None
    except ValueError:
        raise ConfigError("a number has more digits than any size", where=str(path)) from None
    if not isinstance(config, dict):
        raise ConfigError("found no object at its top", where=str(path))
    if mistral.is_params(config):
        config = mistral.as_config(config)
    return with_quantization(config, path.parent), str(path)


def with_quantization(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The config with what a ModelOpt checkpoint's hf_quant_config.json beside it says, where the config is silent."""
    if config.get("quantization_config") is not None:
        return config
    try:
        found = json.loads((folder / "hf_quant_config.json").read_bytes()[:MAX_BYTES])
    except (OSError, ValueError, RecursionError):
        return config
    part = found.get("quantization") if isinstance(found, dict) else None
    return {**config, "quantization_config": {"quantization": part}} if isinstance(part, dict) else config


def with_draft(request: Request, folder: Path | None = None) -> Request:
    """The request with the config of the draft model: from `folder`, else where its speculative settings name it here.

    Settings that name no model take none. Raises ConfigError where `folder` has no config.json.
    """
    if (name := draft_named(request.speculative)) is None:
        return request
    place = folder or Path(name).expanduser()
    if folder is None and config_file(place) is None:
        return request
    config, _ = read_config(place)
    return replace(request, speculative={**(request.speculative or {}), "draft_config": config})
