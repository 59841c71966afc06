"""The command line: words in, tables out; everything else is done by the rooms below."""
