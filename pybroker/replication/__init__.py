"""The replicas of one broker: their roles, high watermarks and ISR changes, the requests that wait
for them, and the copying of followers from their leaders."""
