"""How brokers talk to each other: the controller to brokers, followers to leaders."""
