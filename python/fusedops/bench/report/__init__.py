"""What the CSVs say: summaries, bars, plots."""
