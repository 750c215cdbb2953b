"""Planning: finds a plan for a logical graph on a topology. Searches, options, remedies."""
