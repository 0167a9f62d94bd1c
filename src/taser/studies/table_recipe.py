"""A table as users write it: YAML."""

from pathlib import Path

import yaml

from taser.training.recipes import find_recipe

from .table_config import TableConfig, check_keys


def read_table_config(name: Path | str) -> TableConfig:
    """A table's YAML, such as the shipped studies/digits; unknown keys are refused."""
    try:
        content = yaml.safe_load(find_recipe(name).read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"{name} is no YAML: {error}") from None
    if isinstance(content, dict) and ("loop" in content or "extends" in content):
        raise ValueError(f"{name} is the recipe of a run: `taser train --recipe {name}`")
    check_keys(str(name), content, TableConfig)
    table = TableConfig(**content)
    table.check_runs()
    return table
