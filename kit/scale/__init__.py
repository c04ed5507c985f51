"""More than one run, and more than one machine. Engines are others': Optuna for searches, papermill for notebooks,
Ray for several machines."""
