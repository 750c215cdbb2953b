"""From a logical graph and a topology to a plan: searches, options, remedies."""
