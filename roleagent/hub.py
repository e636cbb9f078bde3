"""Whether a model can be had from the Hugging Face hub: asked before a run begins, in one short request.

transformers would ask when it loads the model, and again and again for a minute where nobody answers. See
https://huggingface.co/docs/huggingface_hub/package_reference/cache and
https://huggingface.co/docs/huggingface_hub/package_reference/file_download.
"""

from __future__ import annotations

import logging

from roleagent.errors import innermost, shortened
from roleagent.tracking.redaction import redact

_CONFIG = "config.json"
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_SECONDS = 5.0
_REASON = 160  # characters


def obstacle(model: str, key: str) -> str:
    """Return why a model of the hub cannot be loaded, with a remedy, in one line; "" if nothing is in the way.

    A model whose configuration and weights are in the cache is not asked for; of another one, the hub is asked for the
    head of its configuration, once. Nothing is downloaded. With HF_HUB_OFFLINE=1 nothing is asked.

    Args:
        model: an id, `name` or `owner/name`.
        key: the setting that holds it, for the remedy.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
    )

    _log_to_root()
    place = redact(constants.ENDPOINT)
    elsewhere = f"download the model elsewhere and give its folder as {key}"
    missing = f"model '{model}' is not in the cache of this machine"
    try:
        if _is_cached(model):
            return ""
        found = get_hf_file_metadata(hf_hub_url(model, _CONFIG), timeout=_SECONDS)
    except HFValidationError:
        return f"'{model}' is neither a folder nor an id as owner/name; correct {key}"
    except OfflineModeIsEnabled:
        return f"{missing}, and HF_HUB_OFFLINE=1 forbids to ask the hub: unset it, or {elsewhere}"
    except GatedRepoError:
        return f"model '{model}' is gated: accept its terms at {place}/{model} and set HF_TOKEN, or {elsewhere}"
    except RepositoryNotFoundError:
        return f"{place} has no model '{model}': correct {key}; to a private model, HF_TOKEN gives access"
    except RemoteEntryNotFoundError:
        return f"'{model}' at {place} holds no model: {_CONFIG} is missing; correct {key}"
    except HfHubHTTPError as error:
        if error.response.status_code in {401, 403}:
            return f"{place} refuses the token in HF_TOKEN: correct or unset it, or {elsewhere}"
        reason = f"answers {error.response.status_code}"
    except Exception as error:  # of whatever library the hub's client asks with; it has changed before
        reason = f"does not answer ({shortened(redact(innermost(error)), _REASON)})"
    else:
        if found.commit_hash:
            return ""
        reason = "answers as no hub does"
    return (
        f"{missing}, and {place} {reason}: check the network, or {elsewhere}, or copy a full cache here (HF_HOME) and "
        "set HF_HUB_OFFLINE=1"
    )


def _is_cached(model: str) -> bool:
    """Whether configuration and weights, or the list of their files, are in the cache."""
    from huggingface_hub import try_to_load_from_cache

    there = {name: isinstance(try_to_load_from_cache(model, name), str) for name in (_CONFIG, *_WEIGHTS)}
    return there[_CONFIG] and any(there[name] for name in _WEIGHTS)


def _log_to_root() -> None:
    """Where a program has a log of its own, as the command line has, keep the client from writing to standard error."""
    if logging.getLogger().handlers:
        library = logging.getLogger("huggingface_hub")
        for handler in [handler for handler in library.handlers if type(handler) is logging.StreamHandler]:
            library.removeHandler(handler)
