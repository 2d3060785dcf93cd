"""How one call of torch's becomes ops: by schema, by rule, by hand, on the host, or refused."""
