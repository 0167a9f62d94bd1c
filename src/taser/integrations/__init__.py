"""TASER inside other trainers: `integrations.lightning`, `.transformers` and `.accelerate`.

Each is a module of its own, which needs the package of its name (an extra of the same name).
"""
