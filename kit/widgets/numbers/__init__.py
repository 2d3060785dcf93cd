"""Tables and small plots of one number's kind each: advice, gaps, kernels, segments, lines."""
