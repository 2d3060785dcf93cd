"""Chrome's trace format, as torch.profiler writes it: read event by event in bounded memory."""
