"""Counting cache pages: which page belongs to whom, and which pages hold a prefix that somebody may need again. Backends own the bytes.

Used by the scheduler. Knows page numbers and token ids only.
"""

from edgeinfer.kvcache.blocks import PagePool
from edgeinfer.kvcache.prefix import page_keys

__all__ = ["PagePool", "page_keys"]
