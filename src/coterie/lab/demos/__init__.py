"""One idea per paper in two minutes: recipes of embedded data, and a picture of what happens."""
