"""`python -m taser`, which torchrun and accelerate launch can start."""

from taser.cli import app

app()
