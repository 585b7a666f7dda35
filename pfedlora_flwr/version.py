"""The package's version, and what it is in a line."""

__version__ = "0.3.0"
"""The one place of the version: `make docs` writes it to pyproject.toml, where Flower looks for
it."""
WIRE = 1
"""The format of what server and nodes say to each other: one with another is refused."""
DESCRIPTION = "pFedLoRA and the methods it is compared with, as a Flower application."
