"""The package's version, and what it is in a line."""

__version__ = "0.3.0"
"""The one place of the version: `make docs` writes it to pyproject.toml, where Flower looks for
it."""
DESCRIPTION = "pFedLoRA and the methods it is compared with, as a Flower application."
