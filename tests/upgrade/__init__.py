"""What earlier versions left behind, and whether this one goes on with it."""
