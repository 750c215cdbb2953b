"""The local program of a rank: building, lowering, resharding, gradients, running."""
