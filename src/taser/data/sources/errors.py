"""What goes wrong when data is brought in."""


class FetchError(RuntimeError):
    """A source that could not be reached, or gave something else than the data set."""
