"""Report pages opened in a real browser: nothing is fetched, and a phone can read them."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from taser.report._page import Page, Picture, Table, png

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    figure = Figure(figsize=(6, 2))
    figure.subplots().plot([0, 1], [1, 0])
    wide = Table([f"column {i}" for i in range(14)], [["3.14159"] * 14] * 3, "A wide table.")
    sections = [("Table", [wide]), ("Picture", [Picture(png(figure), "A falling line.")])]
    return Page("A report", ["The summary comes first."], sections).write(tmp_path / "page.html")


def browse(page: Path, *options: str) -> str:
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
               "--disable-dev-shm-usage", *options, page.as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=True)
    return done.stdout


def test_nothing_is_fetched(page: Path) -> None:
    text = page.read_text()
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", text)
    assert "@import" not in text
    assert "<script" not in text


@pytest.fixture(scope="module")
def _browser(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A browser that can open anything at all here, where processes may be confined."""
    if BROWSER is None:
        pytest.skip("no chromium or chrome on this machine")
    empty = tmp_path_factory.mktemp("browser") / "empty.html"
    empty.write_text("<p>empty</p>")
    try:
        browse(empty, "--dump-dom")
    except subprocess.SubprocessError as error:
        pytest.skip(f"the browser does not run here: {error}")


@pytest.mark.usefixtures("_browser")
@pytest.mark.parametrize("width", [1280, 500])
def test_it_fits_the_screen(page: Path, width: int, tmp_path: Path) -> None:
    """The page is as wide as the window, and a table that is wider scrolls by itself."""
    probe = page.with_name("probe.html")
    script = "document.title = document.documentElement.scrollWidth"
    probe.write_text(page.read_text().replace("</body>", f"<script>{script}</script></body>"))
    dom = browse(probe, f"--window-size={width},900", "--dump-dom")
    found = re.search(r"<title>(\d+)</title>", dom)
    assert found is not None
    assert int(found[1]) <= width
    shot = tmp_path / "shot.png"
    browse(page, f"--window-size={width},900", f"--screenshot={shot}")
    pixels = np.asarray(Image.open(shot).convert("L"))
    assert pixels.shape[1] == width
    assert (pixels < 100).sum() > 500  # there is text
    assert (pixels[:, -2:] > 200).all()  # and none of it runs off the right edge
