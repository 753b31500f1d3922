"""vLLM's registry of architectures, and the tables of model types, read from their text and never imported.

The registry is a table in `vllm/model_executor/models/registry.py`, not a listing of files: a model's file beside it
registers nothing (shared/scenario.md). Shapes seen from 0.8.0 to 0.33.0.
"""

from __future__ import annotations

from typing import Any

from spark_pipeline.image.answer import Registry
from spark_pipeline.image.source_tables import tables_of

_ALL = "_VLLM_MODELS"
_NOT_MODELS = ("_PREVIOUSLY_SUPPORTED_MODELS", "_OOT_SUPPORTED_MODELS")


def read_registry(text: str) -> Registry:
    """The tables of registry.py. Text that cannot be read is told in `problem`, and registers nothing."""
    if not text.strip():
        return Registry(problem="vllm/model_executor/models/registry.py is not there, or empty")
    try:
        tables = tables_of(text)
    except (SyntaxError, ValueError) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        return Registry(problem=f"registry.py does not parse: {reason}{line}")
    architectures = _entries(tables.get(_ALL))
    if not architectures:  # a fork may have renamed the union; the parts are named ..._MODELS in every version
        for name, table in tables.items():
            if name.endswith("_MODELS") and name not in _NOT_MODELS:
                architectures.update(_entries(table))
    return Registry(
        architectures=architectures,
        previously_supported=_texts(tables.get(_NOT_MODELS[0])),
        out_of_tree=_texts(tables.get(_NOT_MODELS[1])),
        problem="" if architectures else f"registry.py has no table {_ALL} that can be read",
    )


def vllm_config_types(text: str) -> tuple[str, ...]:
    """Model types for which vLLM brings a configuration of its own: `_CONFIG_REGISTRY` in transformers_utils/config.py.

    The table is keyed by model type; an entry may have any value.
    """
    return _keys(_tables(text).get("_CONFIG_REGISTRY"))


def transformers_types(auto_mappings: str, configuration_auto: str) -> tuple[str, ...]:
    """Model types that transformers knows.

    Args:
        auto_mappings: text of models/auto/auto_mappings.py, where the table is since 5.x; '' before.
        configuration_auto: text of models/auto/configuration_auto.py, where it was before, and is added to.
    """
    return _keys(_tables(configuration_auto, _tables(auto_mappings)).get("CONFIG_MAPPING_NAMES"))


def _tables(text: str, known: dict[str, Any] | None = None) -> dict[str, Any]:
    try:
        return tables_of(text, known)
    except (SyntaxError, ValueError):
        return dict(known or {})


def _entries(table: Any) -> dict[str, str]:
    """architecture -> 'module:Class', of the entries that are (module, class)."""
    if not isinstance(table, dict):
        return {}
    return {
        name: ":".join(entry)
        for name, entry in table.items()
        if isinstance(entry, tuple) and len(entry) == 2 and all(isinstance(part, str) for part in entry)
    }


def _texts(table: Any) -> dict[str, str]:
    items = table.items() if isinstance(table, dict) else ()
    return {name: value for name, value in items if isinstance(value, str)}


def _keys(table: Any) -> tuple[str, ...]:
    return tuple(sorted(key for key in table if isinstance(key, str))) if isinstance(table, dict) else ()
