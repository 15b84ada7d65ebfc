"""Digits made without downloading any: blended on photographs, and rendered from fonts.

The photographs ship with scikit-learn, the fonts with matplotlib; both need pillow.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgsp.errors import TaskError

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIDE = 28
_FACES = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
    "STIXGeneral",
    "STIXGeneralBol",
    "STIXGeneralItalic",
    "STIXGeneralBolIta",
    "cmr10",
    "cmb10",
    "cmss10",
    "cmtt10",
    "cmti10",
)
_REMEDY = "pip install 'fedgsp[plots]', or leave it out of domains"


def blended(digits: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """|patch - digit| on random patches of photographs, as MNIST-M is made: (n, 28, 28[, 3]) to (n, 28, 28, 3)."""
    from sklearn.datasets import load_sample_images  # half as large as torch, and only for these

    try:
        photographs = load_sample_images().images
    except ImportError as error:
        raise TaskError("the domain 'blended' needs pillow, which is not installed", _REMEDY) from error
    patches = np.empty((len(digits), SIDE, SIDE, 3), np.int16)
    for patch in patches:
        photograph = photographs[rng.integers(len(photographs))]
        top, left = (rng.integers(length - SIDE + 1) for length in photograph.shape[:2])
        patch[:] = photograph[top : top + SIDE, left : left + SIDE]
    colours = digits if digits.ndim == 4 else digits[..., None]
    result: NDArray[np.uint8] = np.abs(patches - colours).astype(np.uint8)
    return result


def rendered(labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.uint8]:
    """One digit each in a random face, size, angle, place, sharpness and pair of colours: (n, 28, 28, 3)."""
    count = len(labels)
    ink = _ink(labels, rng)[..., None] / np.float32(255)
    paper = rng.random((count, 1, 1, 3), np.float32)
    # At least 0.3 away from the paper in every channel: always legible, dark on light as often as light on dark.
    colour = (paper + rng.uniform(0.3, 0.7, paper.shape).astype(np.float32)) % 1
    noise = rng.normal(0, 0.04, (count, SIDE, SIDE, 3)).astype(np.float32)
    shown = np.clip(paper + ink * (colour - paper) + noise, 0, 1)
    result: NDArray[np.uint8] = np.rint(shown * 255).astype(np.uint8)
    return result


def _ink(labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.uint8]:
    """How much of each pixel the digit covers, shape (n, 28, 28)."""
    try:
        import matplotlib as mpl
        from PIL import Image, ImageDraw, ImageFilter, ImageFont
    except ImportError as error:
        raise TaskError("the domain 'rendered' needs matplotlib, which is not installed", _REMEDY) from error
    folder = Path(mpl.get_data_path()) / "fonts" / "ttf"
    fonts: dict[tuple[str, int], Any] = {}
    ink = np.empty((len(labels), SIDE, SIDE), np.uint8)
    for label, covered in zip(labels, ink, strict=True):
        key = (_FACES[rng.integers(len(_FACES))], int(rng.integers(18, 29)))
        if key not in fonts:
            fonts[key] = ImageFont.truetype(str(folder / f"{key[0]}.ttf"), key[1])
        left, top, right, bottom = fonts[key].getbbox(str(label))
        across, down = rng.uniform(-3, 3, 2)
        image = Image.new("L", (SIDE, SIDE))
        corner = ((SIDE - left - right) / 2 + across, (SIDE - top - bottom) / 2 + down)
        ImageDraw.Draw(image).text(corner, str(label), fill=255, font=fonts[key])
        turned = image.rotate(float(rng.uniform(-15, 15)), Image.Resampling.BILINEAR)
        covered[:] = np.asarray(turned.filter(ImageFilter.GaussianBlur(float(rng.uniform(0, 1)))))
    return ink
