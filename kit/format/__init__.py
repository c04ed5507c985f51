"""What files look like: manifests, checkpoints, atomic writes. Runs write them and stores copy them."""
