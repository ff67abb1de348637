"""Everything between a claimed Turn and its answer: the reasoning loop, its models, tools, budget and observer."""
