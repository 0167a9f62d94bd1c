"""Experiments: each returns a plain result that the report turns into tables and figures."""
