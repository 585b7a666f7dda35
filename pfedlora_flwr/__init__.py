"""pFedLoRA and the methods it is compared with, as a Flower application."""

__version__ = "0.3.0"
"""The one place of the version: `make docs` writes it to pyproject.toml, where Flower looks for
it."""
