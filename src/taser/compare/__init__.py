"""Comparisons: a table of methods, regularisers and seeds, trained and evaluated alike."""
