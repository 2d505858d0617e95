"""Names the columns between a query's plan and its slots that belong to no operator."""

from __future__ import annotations

MARKER_TO, MARKER_TOKEN, MARKER_US = "m_to", "m_token", "m_us"
"""Columns of a marker row in micro-batches: receiving slot, sending slot's token, watermark in us."""

INITIAL = "i"
"""True in rows of a processor's initial state, null in all others."""
