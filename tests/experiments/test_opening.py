"""The opening picture shows what is measured, and README says the same."""

from pathlib import Path

import opening

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_picture_is_drawn_from_the_figures_that_the_readme_names(tmp_path: Path) -> None:
    opening.main(["--out", str(tmp_path / "picture.png")])
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    clean, attacked, time = opening.measured().values()
    for name in ("plain", "TASER", "PGD-10"):
        assert f"{attacked[name]:.0f}" in README.split("## Install")[0]
    assert f"×{time['TASER']:.1f}" in README
    assert list(clean) == list(attacked) == list(time)
