"""Declarations and records: what should be, and what was written down."""
