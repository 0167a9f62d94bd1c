"""Measuring what has been trained."""
