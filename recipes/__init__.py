"""How one run trains. The only place that imports torch, transformers and TRL."""
