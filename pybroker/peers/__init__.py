"""The connections between brokers: from the controller to each broker, from a follower to each
leader, and between transaction coordinators and leaders.
"""
