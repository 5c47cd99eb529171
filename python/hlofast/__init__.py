"""Static, offline performance and memory debugger for XLA training steps."""

from importlib.metadata import version

__all__ = ["__version__"]
__version__ = version("hlofast")
