"""Finds the user's token where the tools of Hugging Face keep it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

from parquet_loader.errors import ConfigurationError

_ENVIRONMENT = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_ON = ("1", "ON", "YES", "TRUE")
_OAUTH = "hf_oauth_"


def is_set(name: str) -> bool:
    """Whether an environment variable is set to a true value."""
    return os.environ.get(name, "").upper() in _ON


def hub_token() -> str | None:
    """Return the token to send to the Hub, or None.

    The environment comes first, then the file that ``hf auth login`` writes. Tokens that expire (of a login by browser,
    of CI) and those of Colab are left to huggingface_hub, if that is installed.

    Raises:
        ConfigurationError: the token has invalid characters; the message does not show it.
    """
    token = None
    if not os.environ.get("HF_OIDC_RESOURCE"):
        if is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN"):
            return None
        token = next(filter(None, (_clean(os.environ.get(name)) for name in _ENVIRONMENT)), None) or _of_file()
        if token is not None and not token.startswith(_OAUTH):
            return token
        if token is None and "google.colab" not in sys.modules:
            return None
    if importlib.util.find_spec("huggingface_hub") is None:
        return token
    return _clean(importlib.import_module("huggingface_hub").get_token())


def token_path() -> str:
    """Return the file that holds this user's token."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    home = os.environ.get("HF_HOME") or os.path.join(cache, "huggingface")
    path = os.environ.get("HF_TOKEN_PATH") or os.path.join(home, "token")
    return os.path.expandvars(os.path.expanduser(path))


def _of_file() -> str | None:
    try:
        with open(token_path(), encoding="utf-8") as file:
            return _clean(file.read(2**16))
    except (OSError, UnicodeDecodeError):
        return None


def _clean(token: str | None) -> str | None:
    token = (token or "").strip()
    if not all("!" <= character <= "~" for character in token):
        raise ConfigurationError(
            f"the token of Hugging Face in {' or '.join(_ENVIRONMENT)} or {token_path()} holds characters that no "
            "token has, such as a space; set it again, or run `hf auth login`"
        )
    return token or None
