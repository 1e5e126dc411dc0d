"""Where the data files that ship with edgeinfer are. Anyone may import this module.

In the source tree they lie in `models/` beside the package; a wheel carries the same folder as `edgeinfer/data/models/`, so that it installs no
top-level module named `models` (programs that embed edgeinfer have modules of that name themselves).
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def data_path(kind: str) -> Path:
    """The folder `kind` ("cards", "architectures") of model data, in a wheel and in an editable install alike.

    Raises FileNotFoundError when the installation lacks it: a defect of the package, never of the user.
    """
    shipped = _PACKAGE / "data" / "models"
    folder = (shipped if shipped.is_dir() else _PACKAGE.parent / "models") / kind
    if not folder.is_dir():
        raise FileNotFoundError(f"this installation of edgeinfer has no data folder {kind!r} ({folder}): reinstall the package")
    return folder
