"""A built-in method is one file and one line of the registry: help, options, reports and training
follow."""

from __future__ import annotations
