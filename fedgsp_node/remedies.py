"""What to do about errors of torch that the code of a task meets often."""

import re

#: In the text of an error -> the remedy.
_REMEDIES = {
    r"CUDA|\bMPS\b|HIP GPUs|Expected all tensors to be on the same device": (
        "leave out .cuda() and .to(device) in the task, for --device places the model and the batches; make new"
        " tensors where the arguments are (device=x.device)"
    ),
    r"expected target dtype": "cast the labels to int64, where items of a data set are made or in loss() (y.long())",
    r"stack expects each tensor to be equal size|resize storage that is not resizable": (
        "give all items one size, or override collate(), for example to pad them (torch.nn.utils.rnn.pad_sequence)"
    ),
    r"default_collate: batch must contain": "let items be pairs or dicts of arrays and numbers, or override collate()",
    r"must have the same dtype|type \(.*\) should be the same|(expected|following) scalar types?": (
        "cast the inputs in the model's forward(), for example x.float() or x.long(): the data of a Split keep their"
        " dtypes, except that float64 becomes float32"
    ),
    r"Target -?\d+ is out of bounds": (
        "number the classes from 0 to num_classes - 1, let the model return a number for each, and name a label that"
        " does not count in ignore_index"
    ),
    r"Expected more than 1 value per channel when training": (
        "batch norm takes no mean over a single sample: use nn.GroupNorm, give a larger --batch-size, or leave out"
        " clients with one training sample (--clients)"
    ),
}


def text_of(error: BaseException) -> str:
    """The text of an error, although its class may be unable to make one."""
    try:
        return str(error)
    except Exception as failed:
        return f"its text could not be made ({type(failed).__name__})"


def remedy_of(error: BaseException) -> str | None:
    """The remedy for an error; None if none is known."""
    text = text_of(error)
    return next((remedy for pattern, remedy in _REMEDIES.items() if re.search(pattern, text)), None)
