"""The Dagster layer: stages become assets, results become metadata, errors become failures. Nothing is decided here."""
