"""An engine's process as its parent sees it: started, asked by lines of JSON, ended."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from edgeinfer.benchmark.memory import PrivateMemory
from edgeinfer.benchmark.peers.runner import Start
from edgeinfer.benchmark.results import backend_of
from edgeinfer.benchmark.roofline import ROOFLINE
from edgeinfer.core.errors import BackendUnavailableError, EdgeInferError, MemoryPlanError, UnknownChoiceError


class Child:
    """One engine's process. Raises BackendUnavailableError when it cannot start, EdgeInferError when it fails later."""

    def __init__(self, start: Start, interpreter: str, prepare: Callable[[], None] | None = None) -> None:
        """Starts it and waits until the model is loaded. `prepare` runs in the new process before anything else, to confine it."""
        engine = start.engine
        script = Path(__file__).with_name("child.py")
        arguments = [json.dumps(asdict(start))]
        environment = dict(os.environ)
        if engine == ROOFLINE or backend_of(engine) is not None:  # by module, so that it is this very package whatever the working folder is
            module = "edgeinfer.benchmark.roofline" if engine == ROOFLINE else "edgeinfer.benchmark.child"
            command = [interpreter, "-m", module, *arguments]
            root = str(script.parent.parent.parent)
            environment["PYTHONPATH"] = os.pathsep.join(part for part in (root, environment.get("PYTHONPATH", "")) if part)
        else:
            command = [interpreter, str(script), *arguments]
        self._engine = engine
        # What the engine prints about itself; its end is shown when it fails. `close` closes it.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, encoding="utf-8", env=environment, preexec_fn=prepare
            )
        except OSError as error:
            self._log.close()
            raise BackendUnavailableError(f"{engine}: cannot start {interpreter}: {error.strerror}") from error
        self.memory = PrivateMemory(self._process.pid)
        try:
            with self.memory:
                self.description = self._read()
        except (UnknownChoiceError, MemoryPlanError):  # what was asked for is wrong, or too large: not a backend that is broken
            self.close()
            raise
        except EdgeInferError as error:
            self.close()
            raise BackendUnavailableError(str(error)) from error

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EdgeInferError(f"{self._engine}: its process ended with code {self._process.wait()} and without an answer{self._last_words()}")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            kinds: dict[Any, type[EdgeInferError]] = {kind.exit_code: kind for kind in (UnknownChoiceError, MemoryPlanError)}
            raise kinds.get(found.get("exit_code"), EdgeInferError)(f"{self._engine}: {found['error']}")
        return found

    def ask(self, command: str, **values: Any) -> dict[str, Any]:
        """Sends one request and waits for its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"command": command, **values}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            code = self._process.wait()
            raise EdgeInferError(f"{self._engine}: its process ended with code {code} between two requests{self._last_words()}") from error
        return self._read()

    def _last_words(self) -> str:
        """The end of what the process printed to standard error, as the end of a sentence."""
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", errors="replace").strip().splitlines()
        return f"; it said: {lines[-1]}" if lines else ""

    def close(self) -> None:
        """Ends the process by ending its input; kills it when it does not follow."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass  # the process is gone already
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
