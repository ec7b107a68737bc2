"""How one run trains. The only package that imports torch, transformers and TRL."""

import os

# Read by libraries when they are imported, so set before any of them is. TRL reports each training
# to its makers unless told not to, and warns of each part it calls experimental; importing MLflow,
# for an integration not used here, takes a second.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("DISABLE_MLFLOW_INTEGRATION", "TRUE")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
