"""ALFWorld's text games, real ones, on the household engine: official files in, the stock engine's answers out."""
