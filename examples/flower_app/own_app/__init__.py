"""A Flower app with a ServerApp and a ClientApp of its own around pFedLoRA."""
