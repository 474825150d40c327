"""Decodes and checks column chunks with the compiled kernels."""

from __future__ import annotations
