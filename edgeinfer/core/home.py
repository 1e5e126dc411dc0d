"""Where files that outlive a run are kept: pulled models, compiled kernels and packed weights. Anyone may import this module; it creates nothing on its own."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from edgeinfer.core import env


def home_path(environment: Mapping[str, str] | None = None) -> Path:
    """The folder of all that edgeinfer keeps: EDGEINFER_HOME, else `edgeinfer` in the user's cache folder (XDG_CACHE_HOME, else ~/.cache).

    A user without a home folder (a service account, HOME unset or a relative path) gets a folder of its own under the temporary folder.
    """
    environment = os.environ if environment is None else environment
    given = env.value("EDGEINFER_HOME", environment)
    if given is not None:
        return Path(given).expanduser().absolute()
    cache = environment.get("XDG_CACHE_HOME", "")
    if os.path.isabs(cache):  # the XDG specification: a relative path is to be ignored
        return Path(cache) / "edgeinfer"
    user_home = environment.get("HOME", "")
    if os.path.isabs(user_home):
        return Path(user_home) / ".cache" / "edgeinfer"
    try:
        temporary = tempfile.gettempdir()
    except FileNotFoundError:  # nothing can be written anywhere; only those who want to write something need to hear of it
        temporary = "/tmp"
    return Path(temporary) / f"edgeinfer-{os.getuid()}"


def models_path(environment: Mapping[str, str] | None = None) -> Path:
    """The folder of pulled models."""
    return home_path(environment) / "models"


def model_file(name: str, environment: Mapping[str, str] | None = None) -> Path:
    """The GGUF file of the card `name`, whether or not it has been pulled."""
    return models_path(environment) / f"{name}.gguf"


def kernel_cache_path(environment: Mapping[str, str] | None = None) -> Path | None:
    """The folder of compiled kernels (EDGEINFER_CACHE, else `kernels` in the home), or None when EDGEINFER_CACHE is `none`: memory only."""
    given = env.value("EDGEINFER_CACHE", environment)
    if given is None:
        return home_path(environment) / "kernels"
    if given == "none":
        return None
    return Path(given).expanduser().absolute()


def kernel_pack_paths(environment: Mapping[str, str] | None = None) -> list[Path]:
    """Folders with ready-made kernels, in the order in which they are searched after the cache: those of EDGEINFER_KERNELS (joined by colons), that of the
    Python installation, that of the system. They need not exist."""
    given = env.value("EDGEINFER_KERNELS", environment) or ""
    places = [Path(entry).expanduser().absolute() for entry in given.split(os.pathsep) if entry]
    return [*places, Path(sys.prefix) / "lib" / "edgeinfer" / "kernels", Path("/usr/lib/edgeinfer/kernels")]


def packed_weights_path(environment: Mapping[str, str] | None = None) -> Path:
    """The folder of packed weights that `edgeinfer compile --weights` keeps."""
    return home_path(environment) / "packed"


def measurements_path(environment: Mapping[str, str] | None = None) -> Path:
    """The folder of the speeds that `edgeinfer bench --backends` measured, by which `--backend auto` chooses."""
    return home_path(environment) / "measurements"
