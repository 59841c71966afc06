"""The command line: options in, tables out; everything else is done by the packages below."""
