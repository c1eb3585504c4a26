"""The connections between brokers: from the controller to brokers, and from followers to
leaders."""
