"""The Flower ServerApp, under the name Flower users look for."""

from pfedlora_flwr.server_app import app as app
