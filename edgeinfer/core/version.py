"""The version of edgeinfer, said once: the package build reads it from here. Anyone may import this module; it imports nothing."""

__version__ = "0.1.0"
