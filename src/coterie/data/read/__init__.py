"""Reading: data sets by name, and files and tables of one's own."""
