"""The engine: what users import and every face is built on.

`engine.Engine` is the public class. `loop` is the thread that steps the scheduler, `generation`, `scoring` and `embedding` consume its rows, `streams`
are what callers iterate over, `stops` matches stop texts, `inputs` refuses what cannot be honoured.
"""

from edgeinfer.engine.engine import Engine

__all__ = ["Engine"]
