"""File formats: manifests, checkpoints, atomic writes. `kit.runs` writes these files, `kit.stores` copies them."""
