"""What tests of other libraries' models share: transformers without its warnings, log lines and the network."""

import logging
import warnings
from contextlib import contextmanager

import huggingface_hub


@contextmanager
def quietly():
    """Keeps what transformers says of slower code and unusual defaults from failing a test; and it from the network."""
    disabled, offline = logging.root.manager.disable, huggingface_hub.constants.HF_HUB_OFFLINE
    logging.disable(logging.CRITICAL)
    huggingface_hub.constants.HF_HUB_OFFLINE = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        huggingface_hub.constants.HF_HUB_OFFLINE = offline
        logging.disable(disabled)
