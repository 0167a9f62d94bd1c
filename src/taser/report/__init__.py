"""Results turned into tables, figures and one self-contained HTML page."""
