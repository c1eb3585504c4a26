"""The connections between brokers: from the controller to each broker, and from a follower to each
leader."""
