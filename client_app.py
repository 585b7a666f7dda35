"""The Flower ClientApp, under the name Flower users look for."""

from pfedlora_flwr.client_app import app as app
