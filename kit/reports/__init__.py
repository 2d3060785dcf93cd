"""Runs as one HTML file, as Markdown tables: views of data, with no kernel behind them."""
