"""pFedLoRA and the methods it is compared with, as a Flower application."""

__version__ = "0.1.0"
