"""The simulation itself: what everything else that it shows rests on."""
